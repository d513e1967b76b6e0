//! Copy of the sources that contains all faults, and its build.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
    process::Stdio,
};

use serde_json::Value;

use super::{
    faults::{SourceEdit, SourceFault, TestSuite},
    test_trial::FAULT_VARIABLE,
};
use crate::shell;

/// Source folders of the crates with faults.
const CRATE_SOURCE_FOLDERS: [&str; 3] =
    ["src", "integrations/axum/src", "integrations/actix-web/src"];

/// Folder of the sources that send scripts to the server, and the file that reads their texts.
const SCRIPT_SOURCES: [&str; 2] = ["src/store/redis", "src/store/redis/script_sources.rs"];

/// Test program, and the working directory in which cargo would start it.
pub(super) struct TestProgram {
    pub(super) executable: PathBuf,
    pub(super) working_dir: PathBuf,
}

/// Built test programs by name.
pub(super) struct TestProgramMap(BTreeMap<String, TestProgram>);

impl TestProgramMap {
    /// Returns the program of a suite. Panics if it was not built, but all chosen suites are built.
    pub(super) fn get(&self, name: &str) -> &TestProgram {
        &self.0[name]
    }
}

/// Copy of the sources with all faults, and the directory of its build.
pub(super) struct MutantBuild {
    source_dir: PathBuf,
    target_dir: PathBuf,
}

impl MutantBuild {
    /// Copies the sources and plants the faults.
    pub(super) fn prepare(faults: &[&SourceFault]) -> Result<Self, String> {
        let (root, mutants) =
            (shell::workspace_root(), shell::workspace_root().join("target/mutants"));
        let build = Self { source_dir: mutants.join("tree"), target_dir: mutants.join("target") };
        let planted = plant_faults(&root, faults)?;
        let listed = ["ls-files", "--cached", "--others", "--exclude-standard"];
        let names = shell::capture_stdout(shell::workspace_command("git", listed))
            .ok_or("git lists no files")?;
        let names = names.lines().filter(|name| root.join(name).is_file()).map(str::to_owned);
        let names: BTreeSet<_> = names.chain(planted.keys().cloned()).collect();
        let failed = |error: std::io::Error| format!("the sources could not be copied: {error}");
        let copied = list_files(&build.source_dir);
        for removed in copied.into_iter().filter(|name| !names.contains(name)) {
            fs::remove_file(build.source_dir.join(removed)).map_err(failed)?;
        }
        for name in &names {
            let text = match planted.get(name) {
                Some(text) => text.clone().into_bytes(),
                None => fs::read(root.join(name)).map_err(failed)?,
            };
            let copy = build.source_dir.join(name);
            // An unchanged file keeps its modification time and is not compiled again.
            if fs::read(&copy).ok().as_ref() != Some(&text) {
                copy.parent().map_or(Ok(()), fs::create_dir_all).map_err(failed)?;
                fs::write(&copy, text).map_err(failed)?;
            }
        }
        Ok(build)
    }

    /// Compiles the test programs of these suites.
    pub(super) fn compile(&self, suites: &[&TestSuite]) -> Result<TestProgramMap, String> {
        let named: BTreeSet<_> = suites.iter().map(|suite| suite.program).collect();
        let mut programs = BTreeMap::new();
        if named.contains("lockgate") {
            self.run_cargo_build(&["-p", "lockgate", "--lib", "--all-features"], &mut programs)?;
        }
        let tests: Vec<_> = named.iter().filter(|name| **name != "lockgate").collect();
        if !tests.is_empty() {
            let targets = tests.iter().flat_map(|name| ["--test", name]);
            let args: Vec<_> = ["-p", "lockgate-tests"].into_iter().chain(targets).collect();
            self.run_cargo_build(&args, &mut programs)?;
        }
        match named.iter().find(|name| !programs.contains_key(**name)) {
            Some(name) => Err(format!("cargo has built no test program {name}")),
            None => Ok(TestProgramMap(programs)),
        }
    }

    fn run_cargo_build(
        &self,
        args: &[&str],
        programs: &mut BTreeMap<String, TestProgram>,
    ) -> Result<(), String> {
        const CARGO_TEST_ARGS: [&str; 3] =
            ["test", "--no-run", "--message-format=json-render-diagnostics"];
        let mut command = shell::cargo_command([&CARGO_TEST_ARGS, args].concat());
        command
            .current_dir(&self.source_dir)
            .env("CARGO_TARGET_DIR", &self.target_dir)
            .env_remove(FAULT_VARIABLE);
        let settings =
            [("PROFILE_DEV_DEBUG", "0"), ("PROFILE_TEST_DEBUG", "0"), ("INCREMENTAL", "0")];
        for (name, value) in settings.map(|(name, value)| (format!("CARGO_{name}"), value)) {
            if std::env::var_os(&name).is_none() {
                command.env(name, value);
            }
        }
        shell::print_command(&command);
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
                let folder = Path::new(manifest).parent().unwrap_or(&self.source_dir).to_owned();
                programs.insert(
                    name.to_owned(),
                    TestProgram { executable: file.into(), working_dir: folder },
                );
            }
        }
        Ok(())
    }
}

/// Files that differ from the sources, as name and text.
fn plant_faults(root: &Path, faults: &[&SourceFault]) -> Result<BTreeMap<String, String>, String> {
    let mut edits_by_file = BTreeMap::<&str, Vec<_>>::new();
    let mut lua = Vec::new();
    for fault in faults {
        for SourceEdit { file, find, replacement: with } in fault.edits {
            if file.ends_with(".lua") {
                check_single_match(root, file, find)?;
                lua.push((fault.name, *find, *with));
            } else {
                let is_planted = format!("crate::planted::is({:?})", fault.name);
                let with = with.replace("ORIGINAL", find).replace("FAULT", &is_planted);
                edits_by_file.entry(file).or_default().push((*find, with));
            }
        }
    }
    let mut texts = BTreeMap::new();
    for (file, edits) in edits_by_file {
        let text = read_file(root, file)?;
        texts.insert(file.to_owned(), apply_edits(file, &text, &edits)?);
    }
    let [folder, reader] = SCRIPT_SOURCES;
    let names = list_files(&root.join(folder)).into_iter().map(|name| format!("{folder}/{name}"));
    for name in names.filter(|name| name.ends_with(".rs") && name != reader) {
        let text = texts.get(&name).cloned().map_or_else(|| read_file(root, &name), Ok)?;
        texts.insert(name, plant_script_texts(&text));
    }
    let with = "redis::Script::new(crate::planted::script(self.source))".to_owned();
    let text = apply_edits(
        reader,
        &read_file(root, reader)?,
        &[("redis::Script::new(self.source)", with)],
    )?;
    texts.insert(reader.to_owned(), text);
    for folder in CRATE_SOURCE_FOLDERS {
        let lib = format!("{folder}/lib.rs");
        let text = texts.get(&lib).cloned().map_or_else(|| read_file(root, &lib), Ok)?;
        texts.insert(lib, text + "\nmod planted;\n");
        texts.insert(format!("{folder}/planted.rs"), planted_module_source(&lua));
    }
    Ok(texts)
}

/// Replaces each `NAME.source` and `script.source` by the planted text.
fn plant_script_texts(text: &str) -> String {
    let mut parts = text.split(".source");
    let mut out = parts.next().unwrap_or_default().to_owned();
    for rest in parts {
        let is_name_char = |c: char| c.is_ascii_alphanumeric() || c == '_';
        let name = out.len() - out.trim_end_matches(is_name_char).len();
        let name = out.split_off(out.len() - name);
        let is_script = name == "script"
            || !name.is_empty() && name.chars().all(|c| c.is_ascii_uppercase() || c == '_');
        out += &match is_script && !rest.starts_with(|c| is_name_char(c) || c == '(') {
            true => format!("crate::planted::script({name}.source){rest}"),
            false => format!("{name}.source{rest}"),
        };
    }
    out
}

fn read_file(root: &Path, file: &str) -> Result<String, String> {
    fs::read_to_string(root.join(file)).map_err(|error| format!("{file}: {error}"))
}

/// Applies edits. Each must match the original text exactly once.
fn apply_edits(file: &str, text: &str, edits: &[(&str, String)]) -> Result<String, String> {
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

/// A script is assembled from several files. An edit must match in exactly one of them.
fn check_single_match(root: &Path, file: &str, find: &str) -> Result<(), String> {
    let folder = Path::new(file).parent().unwrap_or(Path::new(""));
    let texts = list_files(&root.join(folder)).into_iter();
    let texts = texts.map(|name| read_file(root, &folder.join(name).to_string_lossy()));
    let times: usize =
        texts.map(|text| Ok(text?.matches(find).count())).sum::<Result<_, String>>()?;
    if times == 1 && read_file(root, file)?.contains(find) {
        return Ok(());
    }
    Err(format!("{file} and the scripts beside it have {times} times, not once: {find}"))
}

/// Files below a folder, as paths relative to it.
fn list_files(folder: &Path) -> Vec<String> {
    let (mut all, mut open_folders) = (Vec::new(), vec![folder.to_owned()]);
    while let Some(open_folder) = open_folders.pop() {
        for entry in fs::read_dir(open_folder).into_iter().flatten().flatten() {
            let path = entry.path();
            if path.is_dir() {
                open_folders.push(path);
            } else if let Ok(name) = path.strip_prefix(folder) {
                all.push(name.to_string_lossy().into_owned());
            }
        }
    }
    all
}

/// Source of the module that reads the active fault.
fn planted_module_source(lua: &[(&str, &str, &str)]) -> String {
    format!(
        r"//! The planted fault of this process (`cargo xtask mutants`).
#![allow(dead_code)]

use std::sync::LazyLock;

static NAME: LazyLock<Option<String>> = LazyLock::new(|| std::env::var({FAULT_VARIABLE:?}).ok());

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
    fn every_fault_applies_to_the_current_sources() {
        let planted = plant_faults(&shell::workspace_root(), &faults::all_faults());
        let texts = planted.unwrap_or_else(|message| panic!("{message}"));
        assert!(!texts.values().any(|text| text.contains("FAULT {")), "a marker was not replaced");
    }

    #[test]
    fn script_texts_are_replaced_by_planted_texts() {
        let text = "[\"EVAL\", RUNS.source, script.source] error.source() self.sources";
        let with = "[\"EVAL\", crate::planted::script(RUNS.source), crate::planted::script(script.source)] \
                    error.source() self.sources";
        assert_eq!(plant_script_texts(text), with);
    }

    #[test]
    fn ambiguous_or_overlapping_edits_are_refused() {
        let edit = |find, with: &str| (find, with.to_owned());
        assert_eq!(
            apply_edits("a", "x y z", &[edit("z", "Z"), edit("x", "X")]),
            Ok("X y Z".to_owned())
        );
        assert!(apply_edits("a", "x y x", &[edit("x", "X")]).is_err());
        assert!(apply_edits("a", "x y z", &[edit("x y", "X"), edit("y z", "Z")]).is_err());
    }
}
