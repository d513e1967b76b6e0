//! The prompt, and `--watch`.

use std::io::{BufRead as _, BufReader};

use serde_json::Value;

use crate::shop::Shop;

// The program `script` of other systems has other options.
#[cfg(target_os = "linux")]
#[tokio::test]
async fn prompt_takes_yes_and_no() {
    let shop = Shop::start().await;
    let queue = shop.store.queue::<String>("emails");
    let is_paused = async || queue.stats().await.expect("the store answers").paused;
    let pause = ["queues", "pause", "emails", "--reason", "deploy"];
    for answer in ["n\n", "\n", "maybe\n"] {
        let (code, text) = shop.run_on_terminal(&pause, answer).await;
        assert!(code == Some(4) && text.contains("Pause emails? [y/N]"), "{code:?}: {text}");
        assert!(text.contains("nothing was done") && !is_paused().await, "{text}");
    }
    let (code, text) = shop.run_on_terminal(&pause, "y\n").await;
    assert!(code == Some(0) && is_paused().await, "{code:?}: {text}");

    // The prompt says what changes.
    let set = ["limits", "set", "api", "--quota", "5 per 60s burst 2", "--reason", "load"];
    let (code, text) = shop.run_on_terminal(&set, "y\n").await;
    let prompt = "Change api in all processes? Quota: 5 per 60s burst 2; mode: unchanged. [y/N]";
    assert!(code == Some(0) && text.contains(prompt), "{code:?}: {text}");
    let set = ["limits", "set", "api", "--mode", "shadow", "--reason", "load"];
    let (code, text) = shop.run_on_terminal(&set, "n\n").await;
    let prompt = "Quota: unchanged; mode: shadow. [y/N]";
    assert!(code == Some(4) && text.contains(prompt), "{code:?}: {text}");
}

#[tokio::test]
async fn watch_repeats_the_document_until_its_pipe_is_closed() {
    let shop = Shop::start().await;
    let _guard = shop.store.lock("order:7").acquire().await.expect("it is free");
    let mut top = shop.prepare(env!("CARGO_BIN_EXE_lockgate"));
    top.args(["top", "--watch=1", "--json"]);
    let watch = tokio::task::spawn_blocking(move || {
        let mut child = top.spawn().expect("it is built");
        let stdout = BufReader::new(child.stdout.take().expect("a pipe"));
        let lines: Vec<_> = stdout.lines().take(2).map(|line| line.expect("UTF-8")).collect();
        (lines, child.wait().expect("it ends").code())
    });
    let (lines, code) = watch.await.expect("no panic");
    assert_eq!(code, Some(0));
    assert_eq!(lines.len(), 2);
    for line in lines {
        let document: Value = serde_json::from_str(&line).expect("a document");
        assert_eq!((&document["jobs"]["pending"], &document["paused"]), (&0.into(), &false.into()));
        assert_eq!(document["locks"]["holds"][0]["lock"], "order:7");
        assert_eq!(document["workers"][0]["pid"], std::process::id());
        assert_eq!(document["silent"], Value::Array(Vec::new()));
        assert!(document["queues"].is_array(), "{document}");
    }
}
