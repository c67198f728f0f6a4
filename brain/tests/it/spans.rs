//! Spans in log lines.

use std::fs;

use serde_json::{Value, json};

use crate::program::Kubebrain;
use crate::wire::{Request, Target as _, pb};

#[tokio::test]
async fn log_lines_of_a_term_carry_its_epoch() {
    let root = tempfile::tempdir().unwrap();
    let (dir, file) = (root.path().join("data"), root.path().join("log"));
    for epoch in 1..=2 {
        let outputs = format!("--log-outputs=stderr,{}", file.display());
        let mut server = Kubebrain::start_with(&dir, &[outputs]).await;
        for value in ["1", "2"] {
            let put = pb::PutRequest {
                key: b"a"[..].into(),
                value: value.into(),
                ..Default::default()
            };
            server.client.call(Request::Put(put)).await.unwrap();
        }
        let compact = pb::CompactionRequest {
            revision: 1 + 2 * epoch,
            physical: true,
        };
        server.client.call(Request::Compact(compact)).await.unwrap();
        server.stop().await;
        let log = fs::read_to_string(&file).unwrap();
        let lines = log.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        let said: Vec<Value> = lines.filter(|line| line["msg"] == "compacted").collect();
        let last = said.last().expect("nothing was compacted");
        assert_eq!(last["spans"], json!([{"name": "term", "epoch": epoch}]), "{last}");
        // Fields of the line stay where they were.
        assert!(last["revision"].is_i64() && last["level"] == "info", "{last}");
    }
}
