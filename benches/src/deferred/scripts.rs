//! How long each of our scripts takes, by the slow log of the server with everything in it. Not while anything
//! else is timed.

use std::{
    collections::BTreeMap,
    fs,
    io::{BufRead as _, BufReader, Write as _},
    net::{Shutdown, TcpStream},
    path::Path,
    thread,
};

use redis::{Script, Value, cmd};

use super::stage::Stage;
use crate::{
    figure::short,
    outcome::Outcome,
    report,
    stats::{float, per_mille},
};

/// Entries that are kept: more than one part of a load makes.
const ENTRIES: u32 = 400_000;

/// Names of scripts, by what they are called by.
pub(super) type Names = BTreeMap<String, String>;

/// Microseconds of every call of each script.
#[derive(Debug, Default)]
pub(super) struct Times(BTreeMap<String, Vec<u64>>);

impl Times {
    /// Adds what the server does meanwhile.
    pub(super) fn watch(
        &mut self,
        stage: &mut Stage,
        meanwhile: impl FnOnce(&mut Stage) -> Outcome<()>,
    ) -> Outcome<()> {
        set(stage, "slowlog-max-len", &ENTRIES.to_string())?;
        stage.bench.server.ask::<()>(cmd("SLOWLOG").arg("RESET"))?;
        set(stage, "slowlog-log-slower-than", "0")?;
        let done = meanwhile(stage);
        set(stage, "slowlog-log-slower-than", "-1")?;
        done?;
        let entries: Vec<Value> = stage.bench.server.ask(cmd("SLOWLOG").arg("GET").arg(-1))?;
        for (hash, micros) in entries.iter().filter_map(script) {
            self.0.entry(hash).or_default().push(micros);
        }
        stage.bench.server.ask(cmd("SLOWLOG").arg("RESET"))
    }

    /// A line for each, and the largest p99.9 of all of them.
    pub(super) fn print(&mut self, names: &Names) -> Option<f64> {
        let header = ["script", "calls", "p50, us", "p99.9, us", "longest, us", "in all, us"];
        let mut rows = vec![header.map(str::to_owned).to_vec()];
        let mut largest: Option<f64> = None;
        for (hash, micros) in &mut self.0 {
            micros.sort_unstable();
            let name = names.get(hash).cloned().unwrap_or_else(|| hash.chars().take(8).collect());
            let at = |part| float(per_mille(micros, part));
            largest = Some(largest.unwrap_or(0.0).max(at(999)));
            rows.push(vec![
                name,
                micros.len().to_string(),
                short(at(500)),
                short(at(999)),
                short(at(1000)),
                micros.iter().sum::<u64>().to_string(),
            ]);
        }
        report::table(&rows);
        largest
    }
}

/// The hash of an entry's script, and its microseconds: an entry is its number, when, how long, the words, and
/// more that does not matter.
fn script(entry: &Value) -> Option<(String, u64)> {
    let Value::Array(parts) = entry else { return None };
    let [_, _, Value::Int(micros), Value::Array(words), ..] = parts.as_slice() else { return None };
    let word = |at: usize| match words.get(at) {
        Some(Value::BulkString(bytes)) => String::from_utf8_lossy(bytes).to_lowercase(),
        _ => String::new(),
    };
    (word(0) == "evalsha").then(|| (word(1), u64::try_from(*micros).unwrap_or(0)))
}

fn set(stage: &mut Stage, what: &str, value: &str) -> Outcome<()> {
    stage.bench.server.ask(cmd("CONFIG").arg("SET").arg(what).arg(value))
}

/// Listens to which scripts are loaded meanwhile; the server must not have them yet.
pub(super) fn names(
    stage: &mut Stage,
    meanwhile: impl FnOnce(&mut Stage) -> Outcome<()>,
) -> Outcome<Names> {
    stage.bench.server.ask::<()>(cmd("SCRIPT").arg("FLUSH"))?;
    let mut stream = TcpStream::connect(("127.0.0.1", stage.bench.server.port()))?;
    stream.write_all(b"MONITOR\r\n")?;
    let lines = BufReader::new(stream.try_clone()?);
    let listener = thread::spawn(move || {
        let texts = lines.lines().map_while(Result::ok).filter_map(|line| loaded(&line));
        texts.collect::<Vec<String>>()
    });
    let done = meanwhile(stage);
    stream.shutdown(Shutdown::Both)?;
    let texts = listener.join().map_err(|_| "the listener panicked")?;
    done?;
    let files = files()?;
    let named = texts.into_iter().map(|text| {
        let name = name(&files, &text).unwrap_or("?").to_owned();
        (Script::new(&text).get_hash().to_owned(), name)
    });
    Ok(named.collect())
}

/// The script of `"SCRIPT" "LOAD" "text"` or `"EVAL" "text" ..`.
fn loaded(line: &str) -> Option<String> {
    let upper = line.to_uppercase();
    let at = ["\"SCRIPT\" \"LOAD\" \"", "\"EVAL\" \""]
        .iter()
        .find_map(|words| upper.find(words).map(|at| at + words.len()))?;
    Some(unescaped(line.get(at..)?))
}

/// Up to the closing quote.
fn unescaped(text: &str) -> String {
    let (mut plain, mut characters) = (String::new(), text.chars());
    while let Some(character) = characters.next() {
        match character {
            '"' => break,
            '\\' => match characters.next() {
                Some('n') => plain.push('\n'),
                Some('t') => plain.push('\t'),
                Some('r') => plain.push('\r'),
                Some(other) => plain.push(other),
                None => break,
            },
            other => plain.push(other),
        }
    }
    plain
}

/// Name and text of the files that scripts are made of.
fn files() -> Outcome<Vec<(String, String)>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../src/store/lua");
    let mut files = Vec::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        files.push((name, fs::read_to_string(path)?));
    }
    Ok(files)
}

/// Of the file that stands last in the script: what is before it is shared.
fn name<'a>(files: &'a [(String, String)], text: &str) -> Option<&'a str> {
    let place = |file: &str| text.rfind(file.trim());
    let there = files.iter().filter_map(|(name, file)| Some((place(file)?, name)));
    there.max().map(|(_, name)| name.as_str())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hears_what_is_loaded() {
        let line = r#"+1.5 [0 127.0.0.1:5] "SCRIPT" "LOAD" "return \"a\\b\"\n""#;
        assert_eq!(loaded(line).as_deref(), Some("return \"a\\b\"\n"));
        assert_eq!(loaded(r#"+1.5 [0 1:5] "EVALSHA" "abc""#), None);
    }

    #[test]
    fn a_script_is_called_after_its_last_file() {
        let files = [("now", "a = 1\n"), ("claim", "b = 2\n")];
        let files = files.map(|(name, text)| (name.to_owned(), text.to_owned()));
        assert_eq!(name(&files, "a = 1\nb = 2\n"), Some("claim"));
        assert_eq!(name(&files, "c = 3"), None);
    }
}
