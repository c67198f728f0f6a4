use super::*;
use crate::rows::laws;
use crate::tikv::testing;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_laws_of_rows_hold_in_tikv() {
    let mut stores = Vec::new();
    let fresh = async || {
        let store = testing::fresh().await;
        let rows = TikvRows::new(store.tikv.clone());
        stores.push(store);
        rows
    };
    laws::hold(fresh, 2_000).await;
}
