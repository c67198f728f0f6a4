use super::*;
use crate::rows::laws;

pub(super) fn small() -> Options {
    Options {
        cache_bytes: 1 << 20,
        memtable_bytes: 256 << 10,
        reserve_bytes: 1 << 20,
        ..Options::default()
    }
}

#[tokio::test]
async fn the_laws_of_rows_hold_on_disk() {
    for options in [small(), Options::default()] {
        let root = tempfile::tempdir().unwrap();
        let mut number = 0;
        laws::hold(|| {
            number += 1;
            FjallRows::open(&root.path().join(number.to_string()), options.clone()).unwrap()
        })
        .await;
    }
}
