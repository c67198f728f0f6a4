//! Random scripts on files and on the model: both give the same answers.

use proptest::prelude::*;

use super::*;
use engine::log::MemLog;

#[derive(Debug, Clone)]
enum Step {
    /// Appends to slots this far before or after the end, all at once.
    Append(Vec<(i64, u32, usize)>),
    Read(u64, usize),
    Raise(i64),
    Destroy,
    Reopen,
}

fn step() -> impl Strategy<Value = Step> {
    let append = (-4i64..9, 0u32..2, prop_oneof![1usize..200, 1usize..3000]);
    prop_oneof![
        6 => prop::collection::vec(append, 1..8).prop_map(Step::Append),
        2 => (0u64..40, 0usize..3000).prop_map(|(back, bytes)| Step::Read(back, bytes)),
        1 => (0i64..30).prop_map(Step::Raise),
        1 => Just(Step::Destroy),
        1 => Just(Step::Reopen),
    ]
}

/// An answer in a form that can be compared.
fn plain(answer: Result<(), AppendError>) -> Result<(), Option<Bytes>> {
    answer.map_err(|error| match error {
        AppendError::Taken(_, there) => Some(there),
        other => panic!("{other:?}"),
    })
}

async fn agree(steps: Vec<Step>) {
    let dir = scratch();
    let mut files = open_small(dir.path());
    // The model destroys nothing: below the watermark files may still hold what they held, or nothing.
    let model = MemLog::new();
    let mut end = 10u64;
    for step in steps {
        let watermark = model.watermark().await.unwrap();
        match step {
            Step::Append(appends) => {
                let slots = appends
                    .into_iter()
                    .map(|(offset, attempt, len)| (end.saturating_add_signed(offset), attempt, len));
                let slots: Vec<_> = slots.filter(|(slot, ..)| *slot >= watermark.0).collect();
                let of = |(slot, attempt, len): &(u64, u32, usize)| (Slot(*slot), record(*slot, *attempt, *len));
                let answers =
                    futures::future::join_all(slots.iter().map(of).map(|(slot, record)| files.append(slot, record)));
                for (answer, append) in answers.await.into_iter().zip(&slots) {
                    let (slot, record) = of(append);
                    assert_eq!(plain(answer), plain(model.append(slot, record).await), "{append:?}");
                }
                end = slots.iter().map(|(slot, ..)| slot + 1).fold(end, u64::max);
            }
            Step::Read(back, bytes) => {
                let from = Slot(end.saturating_sub(back)).max(watermark);
                assert_eq!(
                    files.read(from, bytes).await.unwrap(),
                    model.read(from, bytes).await.unwrap()
                );
            }
            Step::Raise(back) => {
                let to = Slot(end.saturating_add_signed(2 - back));
                files.raise_watermark(to).await.unwrap();
                model.raise_watermark(to).await.unwrap();
            }
            Step::Destroy => {
                files.destroy_below_watermark().await.unwrap();
            }
            Step::Reopen => {
                drop(files);
                files = open_small(dir.path());
            }
        }
        let watermark = model.watermark().await.unwrap();
        assert_eq!(files.watermark().await.unwrap(), watermark);
        assert_eq!(read_all(&files, watermark.0).await, read_all(&model, watermark.0).await);
        let (left, all) = (read_all(&files, 0).await, read_all(&model, 0).await);
        assert!(left.iter().all(|there| all.contains(there)));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn files_agree_with_the_model(steps in prop::collection::vec(step(), 1..40)) {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        runtime.block_on(agree(steps));
    }
}
