use super::*;
use crate::change::ChangeContent;

fn batch(number: u64) -> Batch {
    Batch::new([ChangeContent::SafePoint(number)])
}

fn read(path: &Path) -> Result<Vec<Batch>, JournalError> {
    let mut batches = Vec::new();
    Journal::open(path, |batch| batches.push(batch)).map(|_| batches)
}

fn write(path: &Path, numbers: std::ops::Range<u64>) -> Journal {
    let mut journal = Journal::open(path, drop).unwrap();
    journal.write(&numbers.map(batch).collect::<Vec<_>>()).unwrap();
    journal
}

#[test]
fn what_was_written_is_read_again_in_order() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("data");
    write(&path, 0..3);
    write(&path, 3..5);
    assert_eq!(read(&path).unwrap(), (0..5).map(batch).collect::<Vec<_>>());
}

#[test]
fn the_tail_after_the_last_sync_can_be_dropped() {
    let directory = tempfile::tempdir().unwrap();
    let mut journal = write(&directory.path().join("data"), 0..2);
    journal.sync().unwrap();
    journal.write(&[batch(2)]).unwrap();
    let mut batches = Vec::new();
    journal.drop_tail(|batch| batches.push(batch)).unwrap();
    assert_eq!(batches, [batch(0), batch(1)]);
    journal.write(&[batch(3)]).unwrap();
    let in_use = read(&directory.path().join("data")).unwrap_err();
    assert!(matches!(in_use, JournalError::InUse(_)), "{in_use}");
    drop(journal);
    assert_eq!(
        read(&directory.path().join("data")).unwrap(),
        [batch(0), batch(1), batch(3)]
    );
}

#[test]
fn a_torn_last_record_is_dropped_and_damage_before_it_refused() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("data");
    write(&path, 0..3);
    let whole = std::fs::read(&path).unwrap();
    for cut in 1..RECORD_HEADER_BYTES + 2 {
        std::fs::write(&path, &whole[..whole.len() - cut]).unwrap();
        assert_eq!(read(&path).unwrap(), [batch(0), batch(1)], "{cut} bytes cut off");
    }
    let mut damaged = whole.clone();
    // The last byte of the first of three equal lengths: still a batch, but another one.
    damaged[JOURNAL_MAGIC.len() + (whole.len() - JOURNAL_MAGIC.len()) / 3 - 1] ^= 1;
    std::fs::write(&path, damaged).unwrap();
    let error = read(&path).unwrap_err();
    assert!(error.to_string().ends_with("is damaged at offset 8"), "{error}");
    std::fs::write(&path, b"something else").unwrap();
    assert!(matches!(read(&path), Err(JournalError::Foreign(_))));
}
