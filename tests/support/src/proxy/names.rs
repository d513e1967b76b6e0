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

/// The name of this script, and of the steps that it makes in this call, if it makes several in one.
pub(super) fn steps(script: &str, words: &[&[u8]]) -> Vec<String> {
    let mut names = vec![script.to_owned()];
    let keys = words.get(2).and_then(|keys| std::str::from_utf8(keys).ok()?.parse::<usize>().ok());
    let mut rest = words.get(3 + keys.unwrap_or(0)..).unwrap_or_default();
    while let [verb, ..] = rest {
        let (name, length) = match (script, verb.first()) {
            ("runs", Some(b'c')) => ("claim", 5),
            ("runs", Some(b's')) => ("settle", 10),
            ("calls", Some(b'a' | b'k')) => ("acquire", 3),
            ("calls", Some(b'r')) => ("release", 2),
            ("calls", Some(b'd')) => ("downgrade", 3),
            _ => break,
        };
        names.push(name.to_owned());
        rest = rest.get(length..).unwrap_or_default();
    }
    names
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

    #[test]
    fn steps_that_go_together_are_known() {
        let call = |words: &'static str| -> Vec<&'static [u8]> {
            words.split(' ').map(str::as_bytes).collect()
        };
        let words = call("EVALSHA x 2 h h c id me 1 2 s id me done 1 - r - 1 2");
        assert_eq!(steps("runs", &words), ["runs", "claim", "settle"]);
        let words = call("EVALSHA x 3 h l q rx1 me ax1 me 5");
        assert_eq!(steps("calls", &words), ["calls", "release", "acquire"]);
        assert_eq!(steps("due", &call("EVALSHA x 1 due 5")), ["due"]);
    }
}
