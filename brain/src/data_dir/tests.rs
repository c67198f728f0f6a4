use std::collections::BTreeMap;

use tempfile::TempDir;

use super::*;
use engine::log::LogId;

const FIRST: Identity = Identity {
    format: DIR_FORMAT,
    cluster_id: 0xc1,
    member_id: 0xa1,
    log: None,
};

fn with_log(id: u8) -> Identity {
    Identity {
        log: Some(LogId([id; 16])),
        ..FIRST
    }
}

fn never() -> Identity {
    panic!("no fresh identity is needed")
}

/// Returns names and contents, to verify that nothing changed.
fn contents(path: &Path) -> BTreeMap<String, Vec<u8>> {
    let entries = fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path());
    entries
        .map(|path| (path.display().to_string(), fs::read(&path).unwrap_or_default()))
        .collect()
}

fn refused(path: &Path) -> DataDirError {
    let before = contents(path);
    let error = DataDir::open(path, || FIRST).unwrap_err();
    assert_eq!(contents(path), before, "{error}");
    assert!(!error.to_string().contains('\n'), "{error}");
    error
}

#[test]
fn a_new_directory_gets_an_identity_and_keeps_it() {
    let temp = TempDir::new().unwrap();
    let path = temp.path().join("a/b");
    let dir = DataDir::open(&path, || FIRST).unwrap();
    assert_eq!((dir.path(), dir.identity()), (path.as_path(), &FIRST));
    drop(dir);
    assert_eq!(DataDir::open(&path, never).unwrap().identity(), &FIRST);
}

#[test]
fn a_directory_in_use_names_who_uses_it() {
    let temp = TempDir::new().unwrap();
    let dir = DataDir::open(temp.path(), || FIRST).unwrap();
    let error = refused(temp.path());
    assert!(
        error
            .to_string()
            .contains(&format!("in use by process {}", std::process::id())),
        "{error}"
    );
    drop(dir);
    DataDir::open(temp.path(), never).unwrap();
}

#[test]
fn the_data_of_others_is_left_alone() {
    for (name, reason) in [
        ("member", "data of etcd"),
        ("notes.txt", "\"notes.txt\" but no IDENTITY file"),
    ] {
        let temp = TempDir::new().unwrap();
        fs::create_dir(temp.path().join(name)).unwrap();
        let error = refused(temp.path());
        assert!(
            matches!(error, DataDirError::Foreign { .. }) && error.to_string().contains(reason),
            "{error}"
        );
    }
}

#[test]
fn a_first_start_that_was_cut_short_is_taken_up_again() {
    let temp = TempDir::new().unwrap();
    fs::create_dir(temp.path().join("lost+found")).unwrap();
    fs::write(temp.path().join(LOCK_FILE), "").unwrap();
    fs::write(temp.path().join(IDENTITY_NEW_FILE), "kubebr").unwrap();
    assert_eq!(DataDir::open(temp.path(), || FIRST).unwrap().identity(), &FIRST);
}

#[test]
fn store_is_there_once_its_log_is_named() {
    let temp = TempDir::new().unwrap();
    let path = temp.path().join("not/mounted");
    assert!(!DataDir::holds_store(&path).unwrap());
    assert!(!path.exists(), "nothing is created");
    assert!(!DataDir::holds_store(temp.path()).unwrap());
    let mut dir = DataDir::open(&path, || FIRST).unwrap();
    assert!(!DataDir::holds_store(&path).unwrap());
    for part in [LOG_DIR, ROWS_DIR] {
        fs::create_dir(path.join(part)).unwrap();
        fs::write(path.join(part).join("x"), "").unwrap();
    }
    dir.set_log(LogId([7; 16])).unwrap();
    assert!(DataDir::holds_store(&path).unwrap());
    assert!(matches!(
        DataDir::holds_store(temp.path()),
        Err(DataDirError::Foreign { .. })
    ));
}

#[test]
fn a_newer_format_is_refused() {
    let temp = TempDir::new().unwrap();
    fs::write(
        temp.path().join(IDENTITY_FILE),
        format!("kubebrain data directory\nformat {}\nwhatever\n", DIR_FORMAT + 1),
    )
    .unwrap();
    let error = refused(temp.path());
    assert!(
        matches!(error, DataDirError::Newer { found, .. } if found == DIR_FORMAT + 1),
        "{error}"
    );
}

#[test]
fn an_older_format_is_refused() {
    let temp = TempDir::new().unwrap();
    fs::write(
        temp.path().join(IDENTITY_FILE),
        format!("kubebrain data directory\nformat {}\nwhatever\n", OLDEST_DIR_FORMAT - 1),
    )
    .unwrap();
    let error = refused(temp.path());
    assert!(
        matches!(error, DataDirError::Older { found, .. } if found == OLDEST_DIR_FORMAT - 1),
        "{error}"
    );
}

#[test]
fn format_that_is_still_read_is_raised() {
    let temp = TempDir::new().unwrap();
    let former = Identity {
        format: OLDEST_DIR_FORMAT,
        ..FIRST
    };
    let mut dir = DataDir::open(temp.path(), || former).unwrap();
    dir.raise_format().unwrap();
    assert_eq!(*dir.identity(), FIRST);
    drop(dir);
    let mut dir = DataDir::open(temp.path(), never).unwrap();
    assert_eq!(*dir.identity(), FIRST);
    let before = contents(temp.path());
    dir.raise_format().unwrap();
    assert_eq!(contents(temp.path()), before);
}

#[test]
fn loose_permissions_are_described_in_etcds_words() {
    let temp = TempDir::new().unwrap();
    fs::set_permissions(temp.path(), fs::Permissions::from_mode(0o700)).unwrap();
    assert_eq!(loose_permission(temp.path()).unwrap(), None);
    fs::set_permissions(temp.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let warning = loose_permission(temp.path()).unwrap().unwrap();
    assert!(
        warning.contains("exist, but the permission is \"drwxr-xr-x\". The recommended permission is \"-rwx------\""),
        "{warning}"
    );
    DataDir::open(temp.path(), || FIRST).unwrap();
}

#[test]
fn an_identity_with_any_bit_flipped_or_any_byte_cut_is_refused() {
    assert_eq!(identity::decode(&identity::encode(&FIRST)), Ok(FIRST));
    let named = with_log(7);
    let whole = identity::encode(&named);
    assert_eq!(identity::decode(&whole), Ok(named));
    for len in 0..whole.len() {
        assert!(identity::decode(&whole[..len]).is_err(), "cut at {len}");
        for bit in 0..8 {
            let mut flipped = whole.clone();
            flipped[len] ^= 1 << bit;
            assert!(identity::decode(&flipped).is_err(), "bit {bit} of byte {len}");
        }
    }
    let temp = TempDir::new().unwrap();
    fs::write(temp.path().join(IDENTITY_FILE), &whole[..whole.len() - 1]).unwrap();
    assert!(matches!(refused(temp.path()), DataDirError::Damaged { .. }));
}

#[test]
fn refusal_of_the_file_system_is_reported() {
    let temp = TempDir::new().unwrap();
    let file = temp.path().join("file");
    fs::write(&file, "").unwrap();
    for (path, reason) in [
        (file.clone(), "cannot be created"),
        (file.join("below"), "cannot be created"),
        ("/proc/self/kubebrain".into(), "cannot be created"),
        ("/proc/self/attr".into(), "does not belong to kubebrain"),
    ] {
        let error = DataDir::open(&path, || FIRST).unwrap_err().to_string();
        assert!(error.contains(reason), "{error}");
    }
}

#[test]
fn a_process_id_that_cannot_be_written_is_no_obstacle() {
    let temp = TempDir::new().unwrap();
    // A FIFO can be locked like a file, but has no length that could be set.
    let (fifo, owner) = (rustix::fs::FileType::Fifo, rustix::fs::Mode::RWXU);
    rustix::fs::mknodat(rustix::fs::CWD, temp.path().join(LOCK_FILE), fifo, owner, 0).unwrap();
    let mut lock = lock(temp.path()).unwrap();
    note_owner(&mut lock).unwrap_err();
    drop(lock);
    DataDir::open(temp.path(), || FIRST).unwrap();
}

#[test]
fn a_directory_that_lacks_the_log_or_the_rows_that_it_names_is_refused() {
    let temp = TempDir::new().unwrap();
    let mut dir = DataDir::open(temp.path(), || FIRST).unwrap();
    for part in [LOG_DIR, ROWS_DIR] {
        fs::create_dir(temp.path().join(part)).unwrap();
        fs::write(temp.path().join(part).join("file"), "").unwrap();
    }
    dir.set_log(LogId([7; 16])).unwrap();
    drop(dir);
    assert_eq!(DataDir::open(temp.path(), never).unwrap().identity(), &with_log(7));
    for part in [LOG_DIR, ROWS_DIR] {
        let file = temp.path().join(part).join("file");
        fs::remove_file(&file).unwrap();
        let error = refused(temp.path()).to_string();
        assert!(error.contains(part) && error.contains("restore"), "{error}");
        fs::remove_dir(temp.path().join(part)).unwrap();
        assert!(refused(temp.path()).to_string().contains(part));
        fs::create_dir(temp.path().join(part)).unwrap();
        fs::write(file, "").unwrap();
    }
    DataDir::open(temp.path(), never).unwrap();
}

#[test]
fn another_log_than_the_named_one_is_refused() {
    let temp = TempDir::new().unwrap();
    let mut dir = DataDir::open(temp.path(), || FIRST).unwrap();
    dir.set_log(LogId([7; 16])).unwrap();
    dir.set_log(LogId([7; 16])).unwrap();
    let error = dir.set_log(LogId([8; 16])).unwrap_err();
    assert!(matches!(error, DataDirError::OtherLog { .. }), "{error}");
    assert_eq!(dir.identity(), &with_log(7));
}

#[test]
fn lock_that_is_a_link_is_refused_and_what_it_names_is_kept() {
    let root = TempDir::new().unwrap();
    let victim = root.path().join("victim");
    fs::write(&victim, "precious").unwrap();
    let dir = root.path().join("data");
    drop(DataDir::open(&dir, || FIRST).unwrap());
    fs::remove_file(dir.join(LOCK_FILE)).unwrap();
    std::os::unix::fs::symlink(&victim, dir.join(LOCK_FILE)).unwrap();
    let error = refused(&dir);
    assert!(error.to_string().contains("is not writable"), "{error}");
    assert_eq!(fs::read_to_string(&victim).unwrap(), "precious");
}

#[test]
fn directory_holds_the_store_that_is_expected_or_is_refused() {
    let temp = TempDir::new().unwrap();
    let path = temp.path().join("data");
    let missing = expect(&path, FIRST.cluster_id).unwrap_err();
    assert!(
        matches!(missing, DataDirError::LostStore { wanted: 0xc1, .. }),
        "{missing}"
    );
    assert!(!path.exists(), "nothing is made");
    drop(DataDir::open(&path, || FIRST).unwrap());
    let before = contents(&path);
    expect(&path, FIRST.cluster_id).unwrap();
    let other = expect(&path, 0xc2).unwrap_err();
    assert!(other.to_string().contains("holds the store of cluster c1"), "{other}");
    assert_eq!(contents(&path), before);
    fs::remove_file(path.join(IDENTITY_FILE)).unwrap();
    assert!(matches!(expect(&path, 0xc1), Err(DataDirError::LostStore { .. })));
}
