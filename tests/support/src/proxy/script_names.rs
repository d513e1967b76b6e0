//! `ScriptNames`: name of the script that a call refers to.

use std::{
    collections::HashMap,
    fs,
    path::Path,
    sync::{Arc, LazyLock},
};

use parking_lot::Mutex;

/// Texts of the script files by name. The text of a script call ends with its main file; shared
/// preludes precede it.
static SCRIPT_FILES: LazyLock<Vec<(String, String)>> = LazyLock::new(|| {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../src/store/lua");
    let entries = fs::read_dir(folder).expect("the scripts are there").flatten();
    let file = |entry: fs::DirEntry| {
        let path = entry.path();
        let name = path.file_stem()?.to_str()?.to_owned();
        Some((name, fs::read_to_string(&path).ok()?))
    };
    entries.filter_map(file).collect()
});

/// Script whose text has passed the proxy.
#[derive(Debug)]
struct SentScript {
    name: String,
    text: String,
}

/// Scripts whose texts have passed the proxy, by hash.
#[derive(Debug, Clone, Default)]
pub(super) struct ScriptNames(Arc<Mutex<HashMap<String, SentScript>>>);

impl ScriptNames {
    /// Returns the script that this command calls. `Err`: the hash is unknown.
    pub(super) fn script_name(&self, arguments: &[&[u8]]) -> Result<Option<String>, ()> {
        let [verb, script, ..] = arguments else { return Ok(None) };
        let script = String::from_utf8_lossy(script);
        if verb.eq_ignore_ascii_case(b"EVALSHA") {
            return self.0.lock().get(&*script).map(|sent| Some(sent.name.clone())).ok_or(());
        }
        if !verb.eq_ignore_ascii_case(b"EVAL") {
            return Ok(None);
        }
        let text_length = |file: &&(String, String)| file.1.len();
        let file = SCRIPT_FILES.iter().filter(|(_, text)| script.ends_with(text.as_str()));
        let name = file.max_by_key(text_length).map_or_else(String::new, |(name, _)| name.clone());
        let hash = redis::Script::new(&script).get_hash().to_owned();
        let sent = SentScript { name: name.clone(), text: script.into_owned() };
        self.0.lock().insert(hash, sent);
        Ok(Some(name))
    }

    /// Returns the hash of a script from its truncated text in the slow log.
    pub(super) fn script_hash(&self, truncated_text: &[u8]) -> Option<String> {
        let sent = self.0.lock();
        let mut sent =
            sent.iter().filter(|(_, sent)| truncate_like_slowlog(&sent.text) == truncated_text);
        sent.next().map(|(hash, _)| hash.clone())
    }
}

/// Truncates an argument like the slow log.
fn truncate_like_slowlog(text: &str) -> Vec<u8> {
    const MAX_LENGTH: usize = 128;
    match text.as_bytes().split_at_checked(MAX_LENGTH) {
        Some((prefix, rest)) if !rest.is_empty() => {
            [prefix, format!("... ({} more bytes)", rest.len()).as_bytes()].concat()
        }
        _ => text.as_bytes().to_vec(),
    }
}

/// Returns true if a script of this name exists.
pub(crate) fn script_exists(name: &str) -> bool {
    SCRIPT_FILES.iter().any(|(file_name, _)| file_name == name)
}

/// Returns the name of the script, and of the steps of a batch call.
pub(super) fn script_steps(script: &str, arguments: &[&[u8]]) -> Vec<String> {
    let mut names = vec![script.to_owned()];
    let keys =
        arguments.get(2).and_then(|keys| std::str::from_utf8(keys).ok()?.parse::<usize>().ok());
    let mut remaining = arguments.get(3 + keys.unwrap_or(0)..).unwrap_or_default();
    while let [verb, ..] = remaining {
        let (name, length) = match (script, verb.first()) {
            ("claim_settle_batch", Some(b'c')) => ("claim_lock_and_job", 5),
            ("claim_settle_batch", Some(b's')) => ("settle_job_and_claim_next", 10),
            ("lock_batch", Some(b'a' | b'k')) => ("acquire", 3),
            ("lock_batch", Some(b'r')) => ("release", 2),
            ("lock_batch", Some(b'd')) => ("downgrade", 3),
            _ => break,
        };
        names.push(name.to_owned());
        remaining = remaining.get(length..).unwrap_or_default();
    }
    names
}
