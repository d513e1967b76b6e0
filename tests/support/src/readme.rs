//! What the README's programs do in the place of a refund, when they are run by a test.

use std::{env, path::Path, time::Duration};

use crate::wait::within;

/// The variable that names the file.
pub const GATE: &str = "LOCKGATE_TESTS_GATE";

/// A refund that takes until the test lets it end, by making a file, and then longer than any server takes for its own
/// end (actix-web: 300 ms): a process that does not wait for it is gone before.
///
/// # Panics
///
/// If it was told of none, or waits for too long.
pub async fn until_file() -> &'static str {
    let file = env::var_os(GATE).expect("the path of a file");
    within("the refund to be let go", async move {
        while !Path::new(&file).exists() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    "refunded"
}
