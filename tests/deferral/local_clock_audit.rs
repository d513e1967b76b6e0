//! Row 9: no decision depends on a clock of a client.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
};

/// Files that may read this host's clock, how often, and why that decides nothing about order,
/// leases or due times. Counted are [`CLOCK_READS`] and, in files that contain one, [`AGE_READS`].
/// All other code uses the server time of the scripts, and durations.
const ALLOWED_USES: [(&str, usize, &str); 25] = [
    ("admin/audit_record.rs", 4, "conversion: server time of a record"),
    ("console/console_snapshot.rs", 5, "time axis of charts on the page"),
    ("defer/job_chain.rs", 2, "metric of the wait for a run"),
    ("json_time.rs", 7, "conversion: server times in JSON"),
    ("queue/poll_and_start_tasks.rs", 1, "metric of the wait for a start"),
    ("clock.rs", 9, "clock of the embedded store, which is the server time"),
    ("defer/job_backoff.rs", 3, "delay until the date of a handler's `Retry-After`"),
    ("defer/webhook/deliver_webhook.rs", 1, "conversion: server time of a job's acceptance"),
    (
        "defer/webhook/webhooks.rs",
        5,
        "signature time of a webhook; the receiver may refuse an old one",
    ),
    ("defer/jobs/job_info.rs", 9, "conversion: server times of a job's events"),
    ("defer/settlement_rules.rs", 7, "pause of an unrouted job, from a second to a minute"),
    ("defer/execute_run.rs", 4, "conversion: server time of a job's acceptance"),
    ("defer/lost_holder_warning.rs", 2, "log record about a lock whose holder has gone"),
    ("defer/worker/worker_settings.rs", 1, "age of a worker, above which it logs a lost holder"),
    ("gate/replay_marker.rs", 2, "conversion: server time of a job's acceptance, for handlers"),
    (
        "lock/delegation_header.rs",
        10,
        "validity of a delegation, at most the validity of its lease",
    ),
    ("queue/admin.rs", 3, "conversion: server times of a task's push and end"),
    ("queue/push_request.rs", 4, "delay until the caller's `run_at`"),
    (
        "queue/task_run.rs",
        1,
        "end of the hour after which an unreadable payload counts as a failure",
    ),
    (
        "queue/sealed_payload.rs",
        1,
        "pause of a task whose key is missing, from a second to a minute",
    ),
    ("queue/task.rs", 5, "conversion: server time of a task's push"),
    ("http_replay/sign_replay_request.rs", 6, "latest start of a run sent to another process"),
    (
        "http_replay/replay_verifier.rs",
        6,
        "check of the latest start; the store decides whether the run is active",
    ),
    ("store/backend.rs", 5, "estimate of the server time; its callers are counted too"),
    ("testing/test_kit.rs", 4, "conversion: time of the manual clock"),
];

const CLOCK_READS: [&str; 8] = [
    "SystemTime",
    "UNIX_EPOCH",
    "Utc::now",
    "Local::now",
    "OffsetDateTime",
    "os.time",
    "os.clock",
    // Estimate of the server time without a call, mostly from this host's clock.
    "backend().estimated_now_us",
];

/// Reads of the age of a time by this host's clock.
const AGE_READS: [&str; 2] = [".elapsed()", "duration_since("];

/// Names of system times that other values have too.
const AMBIGUOUS_NAMES: [&str; 2] = ["at", "began"];

/// Collects the source code without tests and comments, by file name.
fn collect_sources(folder: &Path, prefix: &str, sources: &mut BTreeMap<String, String>) {
    for entry in fs::read_dir(folder).expect("the sources are there").flatten() {
        let (path, name) = (entry.path(), entry.file_name());
        let source_name = format!("{prefix}{}", name.display());
        if path.is_dir() && name != "tests" {
            collect_sources(&path, &format!("{source_name}/"), sources);
        } else if path.extension().is_some_and(|kind| kind == "rs" || kind == "lua")
            && name != "tests.rs"
        {
            let text = fs::read_to_string(&path).expect("a text");
            let code = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
            let code_lines = code.lines().filter(|line| !line.trim_start().starts_with("//"));
            sources.insert(source_name, code_lines.collect::<Vec<_>>().join("\n"));
        }
    }
}

fn count_matches(code: &str, patterns: &[&str]) -> usize {
    patterns.iter().map(|pattern| code.matches(pattern).count()).sum()
}

/// Returns names that are declared as `SystemTime`.
fn system_time_names(code: &str) -> impl Iterator<Item = &str> {
    let prefixes = code.match_indices("SystemTime").map(|(at, _)| &code[..at]);
    prefixes.filter_map(|before| {
        let before = before.trim_end_matches("Option<");
        let before = before.strip_suffix(": ").or_else(|| {
            let signature = before.strip_suffix(") -> ")?;
            Some(&signature[..signature.rfind('(')?])
        })?;
        let begin = before.rfind(|c: char| !is_identifier_char(c)).map_or(0, |at| at + 1);
        Some(&before[begin..])
    })
}

fn is_identifier_char(c: char) -> bool {
    c == '_' || c.is_ascii_alphanumeric()
}

/// Returns true if the code reads the age of a value of this name.
fn reads_age_of(code: &str, name: &str) -> bool {
    ["", "()"].iter().any(|call| {
        let age_read = format!("{name}{call}.elapsed(");
        code.match_indices(&age_read).any(|(at, _)| !code[..at].ends_with(is_identifier_char))
    })
}

#[test]
fn local_clock_is_used_only_where_listed() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let (mut sources, mut folders) = (BTreeMap::new(), vec![(root.join("src"), String::new())]);
    for entry in fs::read_dir(root.join("integrations")).expect("they are there").flatten() {
        let prefix = format!("integrations/{}/src/", entry.file_name().display());
        folders.push((entry.path().join("src"), prefix));
    }
    assert!(folders.len() > 2, "{folders:?}");
    for (folder, prefix) in &folders {
        let before = sources.len();
        collect_sources(folder, prefix, &mut sources);
        assert!(sources.len() > before, "{}", folder.display());
    }
    assert!(sources.len() > 100, "{} files", sources.len());
    let mut violations = Vec::new();
    for (name, code) in &sources {
        let clock_reads = count_matches(code, &CLOCK_READS);
        let use_count =
            if clock_reads == 0 { 0 } else { clock_reads + count_matches(code, &AGE_READS) };
        let allowed = ALLOWED_USES
            .iter()
            .find(|(allowed, ..)| allowed == name)
            .map_or(0, |(_, allowed, _)| *allowed);
        if use_count != allowed {
            violations.push(format!("{name} has {use_count} of them, and {allowed} are listed"));
        }
    }
    violations.extend(
        ALLOWED_USES
            .iter()
            .filter(|(name, ..)| !sources.contains_key(*name))
            .map(|(name, ..)| format!("{name} is not there")),
    );
    // A receiver of a time need not name its type, so uses are also found by name.
    let time_names: BTreeSet<_> =
        sources.values().flat_map(|code| system_time_names(code)).collect();
    assert!(
        ["first_seen", "pushed_at", "accepted"]
            .iter()
            .all(|time_name| time_names.contains(time_name)),
        "{time_names:?}"
    );
    for time_name in time_names.iter().filter(|time_name| !AMBIGUOUS_NAMES.contains(time_name)) {
        let readers = sources.iter().filter(|(_, code)| reads_age_of(code, time_name));
        violations.extend(readers.map(|(name, _)| format!("{name} asks how old `{time_name}` is")));
    }
    assert!(
        violations.is_empty(),
        "these ask this host for the time, or name one: {violations:#?}\nA line of the list says how often, and why that \
         decides nothing"
    );
}
