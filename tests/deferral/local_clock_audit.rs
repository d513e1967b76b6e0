//! Row 9: no decision depends on a clock of a client.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
};

/// Who may name a time of this host, how often, and why that decides nothing about order, leases or due times. What is
/// counted: [`TIMES`], and in a file that has one of these [`AGE_READS`] too. All else takes the server's time, in its scripts,
/// and durations.
const ALLOWED_USES: [(&str, usize, &str); 18] = [
    ("clock.rs", 9, "the clock of the store in memory, which is its server"),
    ("defer/job_backoff.rs", 3, "how far away the moment is that an answer's `Retry-After` names"),
    ("defer/webhook/webhook_job.rs", 1, "when the server has accepted a job, as a time"),
    (
        "defer/webhook/webhooks.rs",
        5,
        "when a callback was signed, which its receiver may refuse as old",
    ),
    ("defer/jobs/job_info.rs", 9, "when the server says that things happened, as times"),
    (
        "defer/settlement_rules.rs",
        7,
        "the pause of a job that no route takes, between a second and a minute",
    ),
    ("defer/execute_run.rs", 3, "when the server has accepted a job, as a time"),
    ("gate/replay_marker.rs", 2, "the same, for handlers"),
    (
        "lock/delegation_header.rs",
        10,
        "how long a token that is handed to another process is good for",
    ),
    ("queue/admin.rs", 3, "when the server says that a task was pushed, and has ended"),
    (
        "queue/push_request.rs",
        4,
        "how far away the moment is that `run_at` is given: whoever pushes has named it",
    ),
    (
        "queue/task_run.rs",
        1,
        "from when on, an hour, it is a failure like any that a task's payload can't be read here",
    ),
    (
        "queue/sealed_payload.rs",
        1,
        "the pause of a task whose key is not here, between a second and a minute",
    ),
    ("queue/task.rs", 5, "when the server says that a task was pushed, as a time"),
    (
        "http_replay/sign_replay_request.rs",
        6,
        "until when a run that was sent to another process may begin there",
    ),
    (
        "http_replay/replay_verifier.rs",
        6,
        "the same, looked at there; whether the run goes on is asked of the store",
    ),
    (
        "store/backend.rs",
        5,
        "what a server's time is without asking; who asks for that is counted too",
    ),
    ("testing/test_kit.rs", 4, "the clock of the test kit, as a time"),
];

const CLOCK_READS: [&str; 8] = [
    "SystemTime",
    "UNIX_EPOCH",
    "Utc::now",
    "Local::now",
    "OffsetDateTime",
    "os.time",
    "os.clock",
    // The time that a store knows without asking: mostly that of this host.
    "backend().estimated_now_us",
];

/// How old a time is, by the clock of this host.
const AGE_READS: [&str; 2] = [".elapsed()", "duration_since("];

/// Times of this kind have names that other times have as well, which are no dates.
const AMBIGUOUS_NAMES: [&str; 2] = ["at", "began"];

/// The code, without what is only for tests, by name.
fn collect_sources(folder: &Path, prefix: &str, found: &mut BTreeMap<String, String>) {
    for entry in fs::read_dir(folder).expect("the sources are there").flatten() {
        let (path, name) = (entry.path(), entry.file_name());
        let named = format!("{prefix}{}", name.display());
        if path.is_dir() && name != "tests" {
            collect_sources(&path, &format!("{named}/"), found);
        } else if path.extension().is_some_and(|kind| kind == "rs" || kind == "lua")
            && name != "tests.rs"
        {
            let text = fs::read_to_string(&path).expect("a text");
            let code = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
            let said = code.lines().filter(|line| !line.trim_start().starts_with("//"));
            found.insert(named, said.collect::<Vec<_>>().join("\n"));
        }
    }
}

fn count_matches(code: &str, words: &[&str]) -> usize {
    words.iter().map(|word| code.matches(word).count()).sum()
}

/// What is declared to be such a time.
fn system_time_names(code: &str) -> impl Iterator<Item = &str> {
    let places = code.match_indices("SystemTime").map(|(at, _)| &code[..at]);
    places.filter_map(|before| {
        let before = before.trim_end_matches("Option<");
        let before = before.strip_suffix(": ").or_else(|| {
            let of = before.strip_suffix(") -> ")?;
            Some(&of[..of.rfind('(')?])
        })?;
        let begin = before.rfind(|c: char| !is_identifier_char(c)).map_or(0, |at| at + 1);
        Some(&before[begin..])
    })
}

fn is_identifier_char(c: char) -> bool {
    c == '_' || c.is_ascii_alphanumeric()
}

/// Whether the age of something of this name is asked for.
fn reads_age_of(code: &str, name: &str) -> bool {
    ["", "()"].iter().any(|call| {
        let asked = format!("{name}{call}.elapsed(");
        code.match_indices(&asked).any(|(at, _)| !code[..at].ends_with(is_identifier_char))
    })
}

#[test]
fn local_clock_is_used_only_where_listed() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let (mut all, mut folders) = (BTreeMap::new(), vec![(root.join("src"), String::new())]);
    for entry in fs::read_dir(root.join("integrations")).expect("they are there").flatten() {
        let prefix = format!("integrations/{}/src/", entry.file_name().display());
        folders.push((entry.path().join("src"), prefix));
    }
    assert!(folders.len() > 2, "{folders:?}");
    for (folder, prefix) in &folders {
        let before = all.len();
        collect_sources(folder, prefix, &mut all);
        assert!(all.len() > before, "{}", folder.display());
    }
    assert!(all.len() > 100, "{} files", all.len());
    let mut wrong = Vec::new();
    for (name, code) in &all {
        let named = count_matches(code, &CLOCK_READS);
        let found = if named == 0 { 0 } else { named + count_matches(code, &AGE_READS) };
        let may = ALLOWED_USES.iter().find(|(may, ..)| may == name).map_or(0, |(_, may, _)| *may);
        if found != may {
            wrong.push(format!("{name} has {found} of them, and {may} are listed"));
        }
    }
    wrong.extend(
        ALLOWED_USES
            .iter()
            .filter(|(name, ..)| !all.contains_key(*name))
            .map(|(name, ..)| format!("{name} is not there")),
    );
    // Who is given one need not say what it is.
    let dates: BTreeSet<_> = all.values().flat_map(|code| system_time_names(code)).collect();
    assert!(
        ["first_seen", "pushed_at", "accepted"].iter().all(|date| dates.contains(date)),
        "{dates:?}"
    );
    for date in dates.iter().filter(|date| !AMBIGUOUS_NAMES.contains(date)) {
        let who = all.iter().filter(|(_, code)| reads_age_of(code, date));
        wrong.extend(who.map(|(name, _)| format!("{name} asks how old `{date}` is")));
    }
    assert!(
        wrong.is_empty(),
        "these ask this host for the time, or name one: {wrong:#?}\nA line of the list says how often, and why that \
         decides nothing"
    );
}
