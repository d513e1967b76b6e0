//! Run times of the scripts of lockgate, taken from the slow log of the server with a threshold of
//! 0. Not used while other values are measured.

use std::{
    collections::BTreeMap,
    fs,
    io::{BufRead as _, BufReader, Write as _},
    net::{Shutdown, TcpStream},
    path::Path,
    thread,
};

use redis::{Script, Value, cmd};

use super::queue_bench::QueueBench;
use crate::{
    bench_figure::format_number,
    bench_result::BenchResult,
    report,
    stats::{per_mille_value, to_f64},
};

/// Length of the slow log, larger than the number of calls of any profiled load.
const SLOWLOG_MAX_LEN: u32 = 400_000;

/// Names of scripts, by their SHA-1.
pub(super) type ScriptNames = BTreeMap<String, String>;

/// Microseconds of each call, by the SHA-1 of the script.
#[derive(Debug, Default)]
pub(super) struct ScriptTimes(BTreeMap<String, Vec<u64>>);

impl ScriptTimes {
    /// Runs `load` and adds the times of its script calls.
    pub(super) fn record(
        &mut self,
        bench: &mut QueueBench,
        load: impl FnOnce(&mut QueueBench) -> BenchResult<()>,
    ) -> BenchResult<()> {
        self.record_slower_than(bench, 0, load)
    }

    /// Like [`record`](Self::record), for the calls that take longer than this. The log of a long
    /// load has no room for all, since it contains the commands of the scripts too.
    pub(super) fn record_slower_than(
        &mut self,
        bench: &mut QueueBench,
        min_micros: u32,
        load: impl FnOnce(&mut QueueBench) -> BenchResult<()>,
    ) -> BenchResult<()> {
        set_config(bench, "slowlog-max-len", &SLOWLOG_MAX_LEN.to_string())?;
        bench.runner.server.query::<()>(cmd("SLOWLOG").arg("RESET"))?;
        set_config(bench, "slowlog-log-slower-than", &min_micros.to_string())?;
        let result = load(bench);
        set_config(bench, "slowlog-log-slower-than", "-1")?;
        result?;
        let entries: Vec<Value> = bench.runner.server.query(cmd("SLOWLOG").arg("GET").arg(-1))?;
        for (sha1, micros) in entries.iter().filter_map(parse_slowlog_entry) {
            self.0.entry(sha1).or_default().push(micros);
        }
        bench.runner.server.query(cmd("SLOWLOG").arg("RESET"))
    }

    /// Returns the time of the longest call, in microseconds.
    pub(super) fn longest(&self) -> Option<f64> {
        self.0.values().flatten().copied().max().map(to_f64)
    }

    /// Prints one row per script and returns the largest p99.9.
    pub(super) fn print_table(&mut self, names: &ScriptNames) -> Option<f64> {
        let header = ["script", "calls", "p50, us", "p99.9, us", "longest, us", "total, us"];
        let mut rows = vec![header.map(str::to_owned).to_vec()];
        let mut largest_p999: Option<f64> = None;
        for (sha1, micros) in &mut self.0 {
            micros.sort_unstable();
            let name = names.get(sha1).cloned().unwrap_or_else(|| sha1.chars().take(8).collect());
            let quantile = |per_mille| to_f64(per_mille_value(micros, per_mille));
            largest_p999 = Some(largest_p999.unwrap_or(0.0).max(quantile(999)));
            rows.push(vec![
                name,
                micros.len().to_string(),
                format_number(quantile(500)),
                format_number(quantile(999)),
                format_number(quantile(1000)),
                micros.iter().sum::<u64>().to_string(),
            ]);
        }
        report::print_table(&rows);
        largest_p999
    }
}

/// Parses an entry of the slow log, which consists of number, time, microseconds, arguments and
/// more. Returns the SHA-1 of the script and the microseconds.
fn parse_slowlog_entry(entry: &Value) -> Option<(String, u64)> {
    let Value::Array(fields) = entry else { return None };
    let [_, _, Value::Int(micros), Value::Array(args), ..] = fields.as_slice() else { return None };
    let arg = |index: usize| match args.get(index) {
        Some(Value::BulkString(bytes)) => String::from_utf8_lossy(bytes).to_lowercase(),
        _ => String::new(),
    };
    (arg(0) == "evalsha").then(|| (arg(1), u64::try_from(*micros).unwrap_or(0)))
}

fn set_config(bench: &mut QueueBench, name: &str, value: &str) -> BenchResult<()> {
    bench.runner.server.query(cmd("CONFIG").arg("SET").arg(name).arg(value))
}

/// Runs `load` and returns the scripts that it loads. Flushes the scripts first, because only
/// unknown scripts are loaded.
pub(super) fn observe_loaded_scripts(
    bench: &mut QueueBench,
    load: impl FnOnce(&mut QueueBench) -> BenchResult<()>,
) -> BenchResult<ScriptNames> {
    bench.runner.server.query::<()>(cmd("SCRIPT").arg("FLUSH"))?;
    let mut stream = TcpStream::connect(("127.0.0.1", bench.runner.server.port()))?;
    stream.write_all(b"MONITOR\r\n")?;
    let lines = BufReader::new(stream.try_clone()?);
    let listener = thread::spawn(move || {
        let texts =
            lines.lines().map_while(Result::ok).filter_map(|line| parse_loaded_script(&line));
        texts.collect::<Vec<String>>()
    });
    let result = load(bench);
    stream.shutdown(Shutdown::Both)?;
    let texts = listener.join().map_err(|_| "the thread that reads MONITOR panicked")?;
    result?;
    let files = read_script_files()?;
    let names = texts.into_iter().map(|text| {
        let name = script_name(&files, &text).unwrap_or("?").to_owned();
        (Script::new(&text).get_hash().to_owned(), name)
    });
    Ok(names.collect())
}

/// Parses the script of `"SCRIPT" "LOAD" "text"` or `"EVAL" "text" ..`.
fn parse_loaded_script(line: &str) -> Option<String> {
    let upper = line.to_uppercase();
    let start = ["\"SCRIPT\" \"LOAD\" \"", "\"EVAL\" \""]
        .iter()
        .find_map(|prefix| upper.find(prefix).map(|index| index + prefix.len()))?;
    Some(unescape(line.get(start..)?))
}

/// Unescapes a string up to its closing quote.
fn unescape(text: &str) -> String {
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

/// Returns the name and the text of each file that scripts consist of.
fn read_script_files() -> BenchResult<Vec<(String, String)>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../src/store/lua");
    let mut files = Vec::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        files.push((name, fs::read_to_string(path)?));
    }
    Ok(files)
}

/// Returns the name of the last file in the script; the files before it are shared.
fn script_name<'a>(files: &'a [(String, String)], text: &str) -> Option<&'a str> {
    let position = |file: &str| text.rfind(file.trim());
    let found = files.iter().filter_map(|(name, file)| Some((position(file)?, name)));
    found.max().map(|(_, name)| name.as_str())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loaded_script_is_parsed_from_monitor_line() {
        let line = r#"+1.5 [0 127.0.0.1:5] "SCRIPT" "LOAD" "return \"a\\b\"\n""#;
        assert_eq!(parse_loaded_script(line).as_deref(), Some("return \"a\\b\"\n"));
        assert_eq!(parse_loaded_script(r#"+1.5 [0 1:5] "EVALSHA" "abc""#), None);
    }

    #[test]
    fn script_is_named_after_its_last_file() {
        let files = [("now", "a = 1\n"), ("claim", "b = 2\n")];
        let files = files.map(|(name, text)| (name.to_owned(), text.to_owned()));
        assert_eq!(script_name(&files, "a = 1\nb = 2\n"), Some("claim"));
        assert_eq!(script_name(&files, "c = 3"), None);
    }
}
