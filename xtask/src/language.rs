//! The step `language` of `cargo xtask check`: holds the sources against the retired words of
//! `language/retired.txt` and the comment width.
//!
//! Names are checked everywhere. Comments are checked in folders that `language/todo.txt` does not
//! list.

use std::{fs, path::Path};

use crate::{imports::rust_files, metadata::Metadata, shell};

/// Longest comment line, in columns.
const WIDTH: usize = 100;

const RETIRED: &str = include_str!("language/retired.txt");
const TODO: &str = include_str!("language/todo.txt");

pub(crate) fn check(_: &Metadata) -> Result<(), String> {
    let root = shell::root();
    let (mut found, mut files) = (Vec::new(), 0);
    for folder in ["src", "crates", "integrations"] {
        for file in rust_files(&root.join(folder))? {
            let name = file.strip_prefix(&root).unwrap_or(&file).display().to_string();
            if name.split('/').any(|part| part == "tests" || part == "tests.rs") {
                continue;
            }
            let text = fs::read_to_string(&file).map_err(|error| format!("{name}: {error}"))?;
            let complaints = complaints(&name, &text);
            found.extend(complaints.iter().map(|(line, what)| format!("{name}:{line}: {what}")));
            files += 1;
        }
    }
    if found.is_empty() {
        println!("{files} files: no retired word, and no comment over {WIDTH} columns.");
        return Ok(());
    }
    found.push("docs/glossary.md names the term to use.".to_owned());
    Err(found.join("\n"))
}

fn listed(list: &'static str, kind: &'static str) -> impl Iterator<Item = &'static str> {
    list.lines().filter_map(move |line| line.strip_prefix(kind)).map(str::trim)
}

fn complaints(name: &str, text: &str) -> Vec<(usize, String)> {
    let stem = Path::new(name).file_stem().map(|stem| stem.to_string_lossy().into_owned());
    let mut found: Vec<_> =
        stem.iter().flat_map(|stem| retired(stem).map(|what| (1, what))).collect();
    let is_todo = TODO.lines().any(|folder| !folder.is_empty() && name.starts_with(folder));
    for (at, line) in text.lines().enumerate() {
        if let Some(declared) = declared_type(line) {
            found.extend(retired(declared).map(|what| (at + 1, what)));
        }
        let line_is_comment = line.trim_start().starts_with("//");
        if is_todo || !line_is_comment {
            continue;
        }
        if line.chars().count() > WIDTH {
            found.push((at + 1, format!("a comment over {WIDTH} columns")));
        }
        let lower = line.to_lowercase();
        let phrases = listed(RETIRED, "phrase ").filter(|phrase| has_phrase(&lower, phrase));
        found.extend(phrases.map(|phrase| (at + 1, format!("retired phrase: {phrase}"))));
    }
    found
}

/// Retired words among the parts of a name in camel case or snake case.
fn retired(name: &str) -> impl Iterator<Item = String> {
    let mut parts = String::new();
    for letter in name.chars() {
        if letter.is_uppercase() {
            parts.push('_');
        }
        parts.extend(letter.to_lowercase());
    }
    let words =
        listed(RETIRED, "name ").filter(move |word| parts.split('_').any(|part| part == *word));
    words.map(|word| format!("retired word in a name: {word}"))
}

fn declared_type(line: &str) -> Option<&str> {
    let mut words = line.split_whitespace().skip_while(|word| word.starts_with("pub"));
    let keyword = words.next()?;
    let name =
        words.next().filter(|_| ["struct", "enum", "trait", "type", "union"].contains(&keyword))?;
    name.split(|letter: char| !letter.is_alphanumeric() && letter != '_').next()
}

/// Phrases are whole words.
fn has_phrase(line: &str, phrase: &str) -> bool {
    line.match_indices(phrase).any(|(at, _)| {
        let before = line[..at].chars().next_back();
        let after = line[at + phrase.len()..].chars().next();
        ![before, after].into_iter().flatten().any(char::is_alphanumeric)
    })
}

#[cfg(test)]
mod tests {
    use super::{TODO, complaints};
    use crate::shell;

    #[test]
    fn retired_words_and_wide_comments_are_found_with_their_line() {
        let text =
            format!("/// Whoever waits.\nstruct ToldName;\nstruct Fine;\n// {}\n", "x".repeat(98));
        let found = complaints("src/nowhere/a_word.rs", &text);
        let lines: Vec<_> = found.iter().map(|(line, _)| *line).collect();
        assert_eq!(lines, [1, 1, 2, 4], "{found:?}");
        assert!(complaints("src/nowhere/keyword.rs", "struct Swordfish; // nobody\n").is_empty());
    }

    #[test]
    fn each_folder_still_to_do_exists() {
        for folder in TODO.lines().filter(|line| !line.is_empty()) {
            assert!(shell::root().join(folder).exists(), "{folder} is done: drop it from todo.txt");
        }
    }
}
