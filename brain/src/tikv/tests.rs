use super::*;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cells_keep_the_laws() {
    let here = testing::fresh().await;
    let mut number = 0;
    crate::cell::laws::hold(async || {
        number += 1;
        here.tikv.cell(&format!("test {number}"))
    })
    .await;
}
