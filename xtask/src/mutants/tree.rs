//! The copy of the sources with all faults, and its build.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
    process::Stdio,
};

use serde_json::Value;

use super::{
    faults::{Edit, Fault, Suite},
    trial::VARIABLE,
};
use crate::shell;

/// Crates with faults, and the file each begins with.
const CRATES: [&str; 3] = ["src", "integrations/axum/src", "integrations/actix-web/src"];

/// The sources that hand the texts of scripts to the server, and the file that reads them.
const SCRIPTS: [&str; 2] = ["src/store/redis", "src/store/redis/scripts.rs"];

/// A program of tests, and the folder that cargo would start it in.
pub(super) struct Program {
    pub(super) file: PathBuf,
    pub(super) folder: PathBuf,
}

pub(super) struct Programs(BTreeMap<String, Program>);

impl Programs {
    /// Programs of all chosen suites have been built.
    pub(super) fn get(&self, name: &str) -> &Program {
        &self.0[name]
    }
}

pub(super) struct Build {
    tree: PathBuf,
    target: PathBuf,
}

impl Build {
    /// Copies the sources as they are, and plants the faults.
    pub(super) fn prepare(faults: &[&Fault]) -> Result<Self, String> {
        let (root, mutants) = (shell::root(), shell::root().join("target/mutants"));
        let build = Self { tree: mutants.join("tree"), target: mutants.join("target") };
        let planted = planted(&root, faults)?;
        let listed = ["ls-files", "--cached", "--others", "--exclude-standard"];
        let names = shell::output(shell::program("git", listed)).ok_or("git lists no files")?;
        let names = names.lines().filter(|name| root.join(name).is_file()).map(str::to_owned);
        let names: BTreeSet<_> = names.chain(planted.keys().cloned()).collect();
        let failed = |error: std::io::Error| format!("the sources could not be copied: {error}");
        for gone in files(&build.tree).into_iter().filter(|name| !names.contains(name)) {
            fs::remove_file(build.tree.join(gone)).map_err(failed)?;
        }
        for name in &names {
            let text = match planted.get(name) {
                Some(text) => text.clone().into_bytes(),
                None => fs::read(root.join(name)).map_err(failed)?,
            };
            let to = build.tree.join(name);
            // A file that stays as it is keeps its time, and is not compiled again.
            if fs::read(&to).ok().as_ref() != Some(&text) {
                to.parent().map_or(Ok(()), fs::create_dir_all).map_err(failed)?;
                fs::write(&to, text).map_err(failed)?;
            }
        }
        Ok(build)
    }

    /// Compiles the test programs of these suites.
    pub(super) fn compile(&self, suites: &[&Suite]) -> Result<Programs, String> {
        let named: BTreeSet<_> = suites.iter().map(|suite| suite.program).collect();
        let mut programs = BTreeMap::new();
        if named.contains("lockgate") {
            self.cargo(&["-p", "lockgate", "--lib", "--all-features"], &mut programs)?;
        }
        let tests: Vec<_> = named.iter().filter(|name| **name != "lockgate").collect();
        if !tests.is_empty() {
            let targets = tests.iter().flat_map(|name| ["--test", name]);
            let args: Vec<_> = ["-p", "lockgate-tests"].into_iter().chain(targets).collect();
            self.cargo(&args, &mut programs)?;
        }
        match named.iter().find(|name| !programs.contains_key(**name)) {
            Some(name) => Err(format!("cargo has built no test program {name}")),
            None => Ok(Programs(programs)),
        }
    }

    fn cargo(&self, args: &[&str], programs: &mut BTreeMap<String, Program>) -> Result<(), String> {
        const FRONT: [&str; 3] = ["test", "--no-run", "--message-format=json-render-diagnostics"];
        let mut command = shell::cargo([&FRONT, args].concat());
        command.current_dir(&self.tree).env("CARGO_TARGET_DIR", &self.target).env_remove(VARIABLE);
        let settings =
            [("PROFILE_DEV_DEBUG", "0"), ("PROFILE_TEST_DEBUG", "0"), ("INCREMENTAL", "0")];
        for (name, value) in settings.map(|(name, value)| (format!("CARGO_{name}"), value)) {
            if std::env::var_os(&name).is_none() {
                command.env(name, value);
            }
        }
        shell::announce(&command);
        let output = command.stderr(Stdio::inherit()).output();
        let output = output.map_err(|error| format!("cargo could not be started: {error}"))?;
        if !output.status.success() {
            return Err("the sources with the faults do not compile".to_owned());
        }
        for line in String::from_utf8_lossy(&output.stdout).lines() {
            let message: Value = serde_json::from_str(line).unwrap_or_default();
            let text = |pointer| message.pointer(pointer).and_then(Value::as_str);
            let is_test = message.pointer("/profile/test") == Some(&Value::Bool(true));
            if let (true, Some(name), Some(file), Some(manifest)) =
                (is_test, text("/target/name"), text("/executable"), text("/manifest_path"))
            {
                let folder = Path::new(manifest).parent().unwrap_or(&self.tree).to_owned();
                programs.insert(name.to_owned(), Program { file: file.into(), folder });
            }
        }
        Ok(())
    }
}

/// The files that differ from those of the sources: name and text.
fn planted(root: &Path, faults: &[&Fault]) -> Result<BTreeMap<String, String>, String> {
    let mut places = BTreeMap::<&str, Vec<_>>::new();
    let mut lua = Vec::new();
    for fault in faults {
        for Edit { file, find, with } in fault.edits {
            if file.ends_with(".lua") {
                occurs_once_in_all(root, file, find)?;
                lua.push((fault.name, *find, *with));
            } else {
                let is_planted = format!("crate::planted::is({:?})", fault.name);
                let with = with.replace("ORIGINAL", find).replace("FAULT", &is_planted);
                places.entry(file).or_default().push((*find, with));
            }
        }
    }
    let mut texts = BTreeMap::new();
    for (file, edits) in places {
        let text = read(root, file)?;
        texts.insert(file.to_owned(), edited(file, &text, &edits)?);
    }
    let [folder, reader] = SCRIPTS;
    let names = files(&root.join(folder)).into_iter().map(|name| format!("{folder}/{name}"));
    for name in names.filter(|name| name.ends_with(".rs") && name != reader) {
        let text = texts.get(&name).cloned().map_or_else(|| read(root, &name), Ok)?;
        texts.insert(name, with_planted_scripts(&text));
    }
    let with = "redis::Script::new(crate::planted::script(self.source))".to_owned();
    let text = edited(reader, &read(root, reader)?, &[("redis::Script::new(self.source)", with)])?;
    texts.insert(reader.to_owned(), text);
    for folder in CRATES {
        let lib = format!("{folder}/lib.rs");
        let text = texts.get(&lib).cloned().map_or_else(|| read(root, &lib), Ok)?;
        texts.insert(lib, text + "\nmod planted;\n");
        texts.insert(format!("{folder}/planted.rs"), module(&lua));
    }
    Ok(texts)
}

/// Puts the planted text in the place of each `NAME.source` and `script.source`.
fn with_planted_scripts(text: &str) -> String {
    let mut parts = text.split(".source");
    let mut out = parts.next().unwrap_or_default().to_owned();
    for rest in parts {
        let begins = |c: char| c.is_ascii_alphanumeric() || c == '_';
        let name = out.len() - out.trim_end_matches(begins).len();
        let name = out.split_off(out.len() - name);
        let is_script = name == "script"
            || !name.is_empty() && name.chars().all(|c| c.is_ascii_uppercase() || c == '_');
        out += &match is_script && !rest.starts_with(|c| begins(c) || c == '(') {
            true => format!("crate::planted::script({name}.source){rest}"),
            false => format!("{name}.source{rest}"),
        };
    }
    out
}

fn read(root: &Path, file: &str) -> Result<String, String> {
    fs::read_to_string(root.join(file)).map_err(|error| format!("{file}: {error}"))
}

/// Applies edits, each found once in the text as it was.
fn edited(file: &str, text: &str, edits: &[(&str, String)]) -> Result<String, String> {
    let mut found = Vec::new();
    for (find, with) in edits {
        match text.match_indices(find).collect::<Vec<_>>()[..] {
            [(at, _)] => found.push((at, find.len(), with)),
            ref all => return Err(format!("{file} has {} times, not once: {find}", all.len())),
        }
    }
    found.sort_unstable();
    let (mut out, mut end) = (String::with_capacity(text.len()), 0);
    for (at, length, with) in found {
        let before = text.get(end..at).ok_or(format!("two edits of {file} overlap: {with}"))?;
        (out, end) = (out + before + with, at + length);
    }
    Ok(out + text.get(end..).unwrap_or_default())
}

/// A script is made of several files: what is replaced in it must be of one of them alone.
fn occurs_once_in_all(root: &Path, file: &str, find: &str) -> Result<(), String> {
    let folder = Path::new(file).parent().unwrap_or(Path::new(""));
    let texts = files(&root.join(folder)).into_iter();
    let texts = texts.map(|name| read(root, &folder.join(name).to_string_lossy()));
    let times: usize =
        texts.map(|text| Ok(text?.matches(find).count())).sum::<Result<_, String>>()?;
    if times == 1 && read(root, file)?.contains(find) {
        return Ok(());
    }
    Err(format!("{file} and the scripts beside it have {times} times, not once: {find}"))
}

/// The files below a folder, by their paths from there.
fn files(folder: &Path) -> Vec<String> {
    let (mut all, mut open) = (Vec::new(), vec![folder.to_owned()]);
    while let Some(next) = open.pop() {
        for entry in fs::read_dir(next).into_iter().flatten().flatten() {
            let path = entry.path();
            if path.is_dir() {
                open.push(path);
            } else if let Ok(name) = path.strip_prefix(folder) {
                all.push(name.to_string_lossy().into_owned());
            }
        }
    }
    all
}

/// The module that tells which fault is planted.
fn module(lua: &[(&str, &str, &str)]) -> String {
    format!(
        r"//! The planted fault of this process (`cargo xtask mutants`).
#![allow(dead_code)]

use std::sync::LazyLock;

static NAME: LazyLock<Option<String>> = LazyLock::new(|| std::env::var({VARIABLE:?}).ok());

pub(crate) fn is(name: &str) -> bool {{
    NAME.as_deref() == Some(name)
}}

pub(crate) fn script(code: &'static str) -> &'static str {{
    let edits = LUA.iter().filter(|(name, ..)| is(name));
    let text = edits.fold(code.to_owned(), |text, (_, find, with)| text.replace(find, with));
    if text == code {{ code }} else {{ text.leak() }}
}}

const LUA: &[(&str, &str, &str)] = &{lua:?};
"
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mutants::faults;

    #[test]
    fn every_fault_has_its_place() {
        let planted = planted(&shell::root(), &faults::all());
        assert!(planted.is_ok_and(|texts| !texts.values().any(|text| text.contains("FAULT {"))));
    }

    #[test]
    fn the_texts_of_scripts_are_planted() {
        let text = "[\"EVAL\", RUNS.source, script.source] error.source() self.sources";
        let with = "[\"EVAL\", crate::planted::script(RUNS.source), crate::planted::script(script.source)] \
                    error.source() self.sources";
        assert_eq!(with_planted_scripts(text), with);
    }

    #[test]
    fn an_edit_is_found_once() {
        let edit = |find, with: &str| (find, with.to_owned());
        assert_eq!(edited("a", "x y z", &[edit("z", "Z"), edit("x", "X")]), Ok("X y Z".to_owned()));
        assert!(edited("a", "x y x", &[edit("x", "X")]).is_err());
        assert!(edited("a", "x y z", &[edit("x y", "X"), edit("y z", "Z")]).is_err());
    }
}
