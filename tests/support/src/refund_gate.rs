//! Body of the refund handler when a test runs a minimal example: it waits for a gate file.

use std::{env, fs, path::Path, time::Duration};

use crate::wait::with_timeout;

/// Environment variable with the path of the gate file. The handler creates a file of the same name
/// with the extension `here` when it starts to wait.
pub const REFUND_GATE: &str = "LOCKGATE_TESTS_GATE";

/// Waits until the gate file exists, and for another second.
///
/// The second is longer than the shutdown of either server (actix-web: 300 ms), so a process that
/// does not wait for its worker exits before the refund has finished.
///
/// # Panics
///
/// If the variable is not set, or if the file is not created in time.
pub async fn wait_for_refund_gate() -> &'static str {
    let file = env::var_os(REFUND_GATE).expect("the path of a file");
    fs::write(Path::new(&file).with_extension("here"), "").expect("a file");
    with_timeout("the refund gate to open", async move {
        while !Path::new(&file).exists() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    "refunded"
}
