//! Power loss at every single write and sync: of what was not synced, any sector may or may not be on disk.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::sync::Mutex;
use std::sync::atomic::AtomicU64;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::*;

const SECTOR_BYTES: usize = 512;

/// The slot and the watermark that must survive every power failure.
#[derive(Debug, Default)]
struct Promised {
    slot: AtomicU64,
    watermark: AtomicU64,
}

/// Watches every write and sync, and tests the state that the disk would have if the power failed right then.
#[derive(Debug)]
pub(crate) struct Power {
    dir: PathBuf,
    promised: Arc<Promised>,
    /// Contents of files before each write that was not synced since, by inode.
    unsynced: BTreeMap<u64, Vec<Vec<u8>>>,
    rng: StdRng,
    tried: usize,
    wrong: Vec<String>,
}

impl Power {
    /// Before `file` is written to.
    pub(crate) fn will_write(&mut self, file: &File) {
        let content = whole(file);
        let inode = file.metadata().unwrap().ino();
        self.unsynced.entry(inode).or_default().push(content);
    }

    /// After `file` was synced.
    pub(crate) fn did_sync(&mut self, file: &File) {
        self.unsynced.remove(&file.metadata().unwrap().ino());
    }

    /// Fails the power, on a copy.
    pub(crate) fn fail(&mut self) {
        let image = scratch();
        for file in fs::read_dir(&self.dir).unwrap() {
            let name = file.unwrap().file_name();
            // Another thread may have renamed or removed it since.
            let Ok(file) = File::open(self.dir.join(&name)) else {
                continue;
            };
            let mut content = whole(&file);
            let older = self.unsynced.get(&file.metadata().unwrap().ino());
            for (n, sector) in content.chunks_mut(SECTOR_BYTES).enumerate() {
                let Some(older) = older else { break };
                let version = self.rng.random_range(0..=older.len());
                if let Some(there) = older
                    .get(version)
                    .and_then(|old| old.get(n * SECTOR_BYTES..n * SECTOR_BYTES + sector.len()))
                {
                    sector.copy_from_slice(there);
                }
            }
            fs::write(image.path().join(name), content).unwrap();
        }
        self.tried += 1;
        for attempt in 0..2 {
            if let Err(wrong) = self.check(image.path()) {
                self.wrong
                    .push(format!("power failure {}, open {attempt}: {wrong}", self.tried));
            }
        }
    }

    fn check(&self, image: &Path) -> Result<(), String> {
        let slot = self.promised.slot.load(SeqCst);
        let watermark = self.promised.watermark.load(SeqCst);
        let (shared, ..) =
            open::open(image, SMALL_SEGMENTS, Disk::default(), None).map_err(|error| error.to_string())?;
        let state = shared.state();
        if state.watermark < watermark {
            return Err(format!("watermark {} instead of {watermark}", state.watermark));
        }
        let places = shared.index().collect(0, usize::MAX);
        let found = read::records(&places, usize::MAX).map_err(|error| error.to_string())?;
        if let Some((slot, _)) = found.iter().find(|(slot, bytes)| *bytes != record_of(slot.0)) {
            return Err(format!("wrong data in slot {slot}"));
        }
        let is_there = |slot: &u64| found.binary_search_by_key(slot, |(slot, _)| slot.0).is_ok();
        match (state.watermark..=slot).find(|slot| !is_there(slot)) {
            Some(lost) => Err(format!("slot {lost} of {slot} is lost")),
            None => Ok(()),
        }
    }
}

/// Reads the content of `file`, even if another thread cuts it during the read.
fn whole(file: &File) -> Vec<u8> {
    let mut content = Vec::new();
    loop {
        let mut part = [0; 16 << 10];
        match file.read_at(&mut part, content.len() as u64).unwrap() {
            0 => return content,
            len => content.extend_from_slice(&part[..len]),
        }
    }
}

/// Some are long, and compressed.
fn record_of(slot: u64) -> Bytes {
    let len = if slot.is_multiple_of(5) { 2_500 } else { slot * 97 % 700 };
    record(slot, 0, len as usize)
}

async fn survives(seed: u64) -> usize {
    let dir = scratch();
    drop(open_small(dir.path()));
    let promised = Arc::new(Promised::default());
    let disk = Disk::default();
    let power = Power {
        dir: dir.path().to_owned(),
        promised: Arc::clone(&promised),
        unsynced: BTreeMap::new(),
        rng: StdRng::seed_from_u64(seed),
        tried: 0,
        wrong: Vec::new(),
    };
    *disk.faults.power.lock().unwrap() = Some(power);
    let mut next = 1;
    for round in 1..=12u64 {
        let log = FileLog::open_on(dir.path(), SMALL_SEGMENTS, disk.clone(), None).unwrap();
        for burst in [1, 6, 1, 3] {
            let appends = (next..next + burst).map(|slot| log.append(Slot(slot), record_of(slot)));
            for answer in futures::future::join_all(appends).await {
                answer.unwrap();
            }
            next += burst;
            promised.slot.store(next - 1, SeqCst);
        }
        if round % 3 == 0 {
            let to = next - 15;
            log.raise_watermark(Slot(to)).await.unwrap();
            promised.watermark.store(to, SeqCst);
            log.destroy_below_watermark().await.unwrap();
        }
    }
    let power = disk.faults.power.lock().unwrap().take().unwrap();
    assert!(power.wrong.is_empty(), "seed {seed}: {:#?}", power.wrong);
    power.tried
}

#[tokio::test]
async fn promises_survive_a_power_loss_at_any_write_or_sync() {
    for seed in 0..6 {
        let tried = survives(seed).await;
        assert!(tried > 100, "{tried} power failures");
    }
}

/// The cell in which [`Disk`] keeps its watcher.
pub(crate) type Watcher = Mutex<Option<Power>>;
