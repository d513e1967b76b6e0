//! Which script a call is about.

use std::{
    collections::HashMap,
    fs,
    path::Path,
    sync::{Arc, LazyLock},
};

use parking_lot::Mutex;

/// The scripts as they stand in their files, by name. A script that is sent ends with the file it is
/// called by; what it shares with others stands in front.
static FILES: LazyLock<Vec<(String, String)>> = LazyLock::new(|| {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../src/store/lua");
    let entries = fs::read_dir(folder).expect("the scripts are there").flatten();
    let file = |entry: fs::DirEntry| {
        let path = entry.path();
        let name = path.file_stem()?.to_str()?.to_owned();
        Some((name, fs::read_to_string(&path).ok()?))
    };
    entries.filter_map(file).collect()
});

/// Names of the scripts that have been sent whole, by their hash.
#[derive(Debug, Clone, Default)]
pub(super) struct Names(Arc<Mutex<HashMap<String, String>>>);

impl Names {
    /// The name of the script that this command calls. `Err`: by a hash that nobody has told of yet.
    pub(super) fn of(&self, words: &[&[u8]]) -> Result<Option<String>, ()> {
        let [verb, script, ..] = words else { return Ok(None) };
        let script = String::from_utf8_lossy(script);
        if verb.eq_ignore_ascii_case(b"EVALSHA") {
            return self.0.lock().get(&*script).cloned().map(Some).ok_or(());
        }
        if !verb.eq_ignore_ascii_case(b"EVAL") {
            return Ok(None);
        }
        let longest = |file: &&(String, String)| file.1.len();
        let file = FILES.iter().filter(|(_, text)| script.ends_with(text.as_str()));
        let name = file.max_by_key(longest).map_or_else(String::new, |(name, _)| name.clone());
        let hash = redis::Script::new(&script).get_hash().to_owned();
        self.0.lock().insert(hash, name.clone());
        Ok(Some(name))
    }
}

/// Whether there is a script of this name.
pub(super) fn is_known(name: &str) -> bool {
    FILES.iter().any(|(known, _)| known == name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_script_is_known_by_its_hash_once_it_was_sent() {
        let names = Names::default();
        let (_, claim) = FILES.iter().find(|(name, _)| name == "claim").expect("a file");
        let text = format!("-- in front\n{claim}");
        let hash = redis::Script::new(&text).get_hash().to_owned();
        let by_hash = [b"EVALSHA".as_slice(), hash.as_bytes(), b"0"];
        assert_eq!(names.of(&by_hash), Err(()));
        let whole = [b"EVAL".as_slice(), text.as_bytes(), b"0"];
        assert_eq!(names.of(&whole), Ok(Some("claim".to_owned())));
        assert_eq!(names.of(&by_hash), Ok(Some("claim".to_owned())));
        assert_eq!(names.of(&[b"GET", b"x"]), Ok(None));
    }
}
