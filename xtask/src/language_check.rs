//! The step `language` of `cargo xtask check`: finds retired words of `language/retired.txt` and
//! comment lines over the width limit.
//!
//! It checks the names of types and files in `src`, `crates` and `integrations`, outside of tests.
//! It checks comments there too, except in the folders that `language/todo.txt` lists.

use std::{fs, path::Path};

use crate::{shell, source_files::source_files, workspace_metadata::WorkspaceMetadata};

/// Longest comment line, in columns.
const MAX_COMMENT_COLUMNS: usize = 100;

const RETIRED_TERMS: &str = include_str!("language/retired.txt");
const TODO_FOLDERS: &str = include_str!("language/todo.txt");

pub(crate) fn check(_: &WorkspaceMetadata) -> Result<(), String> {
    let root = shell::workspace_root();
    let (mut found, mut file_count) = (Vec::new(), 0);
    for folder in ["src", "crates", "integrations"] {
        for file in source_files(&root.join(folder), &["rs", "lua"])? {
            let name = file.strip_prefix(&root).unwrap_or(&file).display().to_string();
            if name.split('/').any(|part| part == "tests" || part == "tests.rs") {
                continue;
            }
            let text = fs::read_to_string(&file).map_err(|error| format!("{name}: {error}"))?;
            let errors = find_language_errors(&name, &text);
            found.extend(errors.iter().map(|(line, message)| format!("{name}:{line}: {message}")));
            file_count += 1;
        }
    }
    if found.is_empty() {
        println!(
            "{file_count} files: no retired word, and no comment over {MAX_COMMENT_COLUMNS} columns."
        );
        return Ok(());
    }
    found.push("docs/glossary.md names the term to use.".to_owned());
    Err(found.join("\n"))
}

fn entries_of_kind(list: &'static str, kind: &'static str) -> impl Iterator<Item = &'static str> {
    list.lines().filter_map(move |line| line.strip_prefix(kind)).map(str::trim)
}

/// Returns the line numbers and messages of the errors in one file.
fn find_language_errors(name: &str, text: &str) -> Vec<(usize, String)> {
    let stem = Path::new(name).file_stem().map(|stem| stem.to_string_lossy().into_owned());
    let mut found: Vec<_> =
        stem.iter().flat_map(|stem| find_retired_parts(stem).map(|error| (1, error))).collect();
    let is_todo = TODO_FOLDERS.lines().any(|folder| !folder.is_empty() && name.starts_with(folder));
    for (index, line) in text.lines().enumerate() {
        let line_number = index + 1;
        if let Some(declared) = declared_type(line) {
            found.extend(find_retired_parts(declared).map(|error| (line_number, error)));
        }
        let marker = if name.ends_with(".lua") { "--" } else { "//" };
        let line_is_comment = line.trim_start().starts_with(marker);
        if is_todo || !line_is_comment {
            continue;
        }
        if line.chars().count() > MAX_COMMENT_COLUMNS {
            found.push((line_number, format!("a comment over {MAX_COMMENT_COLUMNS} columns")));
        }
        let lower = line.to_lowercase();
        let phrases = entries_of_kind(RETIRED_TERMS, "phrase ")
            .filter(|phrase| contains_phrase(&lower, phrase));
        found.extend(phrases.map(|phrase| (line_number, format!("retired phrase: {phrase}"))));
    }
    found
}

/// Finds retired words among the parts of a name in camel case or snake case.
fn find_retired_parts(name: &str) -> impl Iterator<Item = String> {
    let mut parts = String::new();
    for letter in name.chars() {
        if letter.is_uppercase() {
            parts.push('_');
        }
        parts.extend(letter.to_lowercase());
    }
    let words = entries_of_kind(RETIRED_TERMS, "name ")
        .filter(move |word| parts.split('_').any(|part| part == *word));
    words.map(|word| format!("retired word in a name: {word}"))
}

/// Returns the name of the type that a line declares.
fn declared_type(line: &str) -> Option<&str> {
    let mut tokens = line.split_whitespace().skip_while(|token| token.starts_with("pub"));
    let keyword = tokens.next()?;
    let name = tokens
        .next()
        .filter(|_| ["struct", "enum", "trait", "type", "union"].contains(&keyword))?;
    name.split(|letter: char| !letter.is_alphanumeric() && letter != '_').next()
}

/// Phrases are whole words.
fn contains_phrase(line: &str, phrase: &str) -> bool {
    line.match_indices(phrase).any(|(at, _)| {
        let before = line[..at].chars().next_back();
        let after = line[at + phrase.len()..].chars().next();
        ![before, after].into_iter().flatten().any(char::is_alphanumeric)
    })
}

#[cfg(test)]
mod tests {
    use super::{TODO_FOLDERS, find_language_errors};
    use crate::shell;

    #[test]
    fn retired_words_and_wide_comments_are_found_with_their_line() {
        let text =
            format!("/// Whoever waits.\nstruct ToldName;\nstruct Fine;\n// {}\n", "x".repeat(98));
        let found = find_language_errors("src/nowhere/a_word.rs", &text);
        let lines: Vec<_> = found.iter().map(|(line, _)| *line).collect();
        assert_eq!(lines, [1, 1, 2, 4], "{found:?}");
        assert!(
            find_language_errors("src/nowhere/keyword.rs", "struct Swordfish; // nobody\n")
                .is_empty()
        );
    }

    #[test]
    fn every_todo_folder_exists() {
        for folder in TODO_FOLDERS.lines().filter(|line| !line.is_empty()) {
            assert!(
                shell::workspace_root().join(folder).exists(),
                "{folder} is done: drop it from todo.txt"
            );
        }
    }
}
