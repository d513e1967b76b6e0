//! Row 9: no decision depends on a clock of a client.

use std::{
    fs,
    path::{Path, PathBuf},
};

/// Who may ask what time it is on this host, and why that decides nothing about order, leases or due times.
/// All else takes the server's time, in its scripts, and durations.
const MAY: [(&str, &str); 9] = [
    ("clock.rs", "the clock of the store in memory, which is its server"),
    ("lock/elsewhere.rs", "how long a token that is handed to another process is good for"),
    (
        "queue/push.rs",
        "how far away the moment is that `run_at` is given: whoever pushes has named it",
    ),
    ("defer/judge.rs", "the pause of a job that no route takes, between a second and a minute"),
    ("queue/sealed.rs", "the pause of a task whose key is not here, between a second and a minute"),
    (
        "store/backend.rs",
        "the pause of a task whose payload can't be read here, and from when on, an hour, that is a failure like any",
    ),
    ("defer/callback/send.rs", "when a callback was signed, which its receiver may refuse as old"),
    ("remote/replayer.rs", "until when a run that was sent to another process may begin there"),
    (
        "remote/verify.rs",
        "the same, looked at there; whether the run goes on is asked of the store",
    ),
];

fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).expect("the sources are there").flatten() {
        let path = entry.path();
        let name = entry.file_name();
        if path.is_dir() && name != "tests" {
            sources(&path, found);
        } else if path.extension().is_some_and(|kind| kind == "rs" || kind == "lua")
            && name != "tests.rs"
        {
            found.push(path);
        }
    }
}

#[test]
fn nobody_asks_what_time_it_is() {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../src");
    let mut files = Vec::new();
    sources(&src, &mut files);
    assert!(files.len() > 100, "{} files", files.len());
    let mut wrong = Vec::new();
    for file in files {
        let text = fs::read_to_string(&file).expect("a text");
        let code = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
        let name = file.strip_prefix(&src).expect("it lies there").display().to_string();
        let asks = ["SystemTime::now", "Utc::now", "Local::now", "os.time", "os.clock"];
        if asks.iter().any(|ask| code.contains(ask)) && !MAY.iter().any(|(may, _)| *may == name) {
            wrong.push(name);
        }
    }
    assert!(wrong.is_empty(), "these ask this host for the time: {wrong:?}");
}
