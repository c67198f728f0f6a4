//! The laws of logs.

use engine::log::laws::{Subject, Twin, all};

use super::scratch;
use crate::log::{FileLog, FileLogOptions};

struct Files(tempfile::TempDir);

impl Files {
    fn fresh() -> Self {
        Self(scratch())
    }
}

impl Subject for Files {
    type Log = FileLog;

    async fn open(&mut self) -> FileLog {
        let options = FileLogOptions {
            first_segment_bytes: 8 << 10,
            segment_bytes: 8 << 10,
            unsafe_no_fsync: false,
        };
        FileLog::open(self.0.path(), options).unwrap()
    }
}

#[tokio::test]
async fn files_keep_the_laws() {
    all(async || Files::fresh()).await;
}

#[tokio::test]
async fn the_faulty_twin_of_files_keeps_the_laws() {
    all(async || Twin {
        below: Files::fresh(),
        seed: 7,
    })
    .await;
}
