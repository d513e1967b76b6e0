//! The step `language` of `cargo xtask check`: finds retired words of `language/retired.txt` and
//! comment lines over the width limit.
//!
//! It checks comments and the names of files, types, functions, constants, fields, parameters and
//! variables in all Rust and Lua sources, tests included. Only rows of tables may be wider than the
//! limit.

use std::{fs, path::Path};

use crate::{shell, source_files::source_files, workspace_metadata::WorkspaceMetadata};

/// Longest comment line, in columns.
const MAX_COMMENT_COLUMNS: usize = 100;

const RETIRED_TERMS: &str = include_str!("language/retired.txt");

const FOLDERS: [&str; 7] =
    ["src", "crates", "integrations", "tests", "xtask", "benches/src", "examples"];

/// Keywords before a declared name.
const DECLARATION_KEYWORDS: [&str; 13] = [
    "struct", "enum", "trait", "type", "union", "fn", "mod", "const", "static", "let", "mut",
    "local", "function",
];

/// Keywords before a pattern or a list, all words of which count as declared names.
const PATTERN_KEYWORDS: [&str; 4] = ["let", "for", "local", "function"];

pub(crate) fn check(_: &WorkspaceMetadata) -> Result<(), String> {
    let root = shell::workspace_root();
    let (mut found, mut file_count) = (Vec::new(), 0);
    for folder in FOLDERS {
        for file in source_files(&root.join(folder), &["rs", "lua"])? {
            let name = file.strip_prefix(&root).unwrap_or(&file).display().to_string();
            if root.join(&name) == root.join(file!()) {
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
    for (index, line) in text.lines().enumerate() {
        let line_number = index + 1;
        let marker = if name.ends_with(".lua") { "--" } else { "//" };
        if !line.trim_start().starts_with(marker) {
            let names = declared_names(line, marker).into_iter();
            found.extend(names.flat_map(find_retired_parts).map(|error| (line_number, error)));
            continue;
        }
        let is_table_row = line.contains("// | ") || line.contains("//! | ");
        if line.chars().count() > MAX_COMMENT_COLUMNS && !is_table_row {
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

/// Returns the names that a line declares: after a keyword, in a pattern, or before a colon.
fn declared_names<'a>(line: &'a str, comment_marker: &str) -> Vec<&'a str> {
    let is_separator = |letter: char| !letter.is_alphanumeric() && letter != '_';
    let mut names = Vec::new();
    // Every second part is the text of a string.
    for code in line.split('"').step_by(2).filter_map(|part| part.split(comment_marker).next()) {
        let (mut is_pattern, mut previous) = (false, "");
        let mut pieces = code.split_inclusive(is_separator).peekable();
        while let Some(piece) = pieces.next() {
            let word = piece.trim_end_matches(is_separator);
            let has_type = piece.ends_with(':') && pieces.peek() != Some(&":");
            if !word.is_empty() {
                if is_pattern || has_type || DECLARATION_KEYWORDS.contains(&previous) {
                    names.push(word);
                }
                is_pattern = (is_pattern || PATTERN_KEYWORDS.contains(&word)) && word != "in";
                previous = word;
            }
            is_pattern &= !piece.ends_with('=');
        }
    }
    names
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
    use super::find_language_errors;

    #[test]
    fn retired_words_and_wide_comments_are_found_with_their_line() {
        let text = format!(
            "/// Whoever waits.\nstruct ToldName;\nlet (a, mut told) = 1;\n// {}\n\
             for told in x {{\nword: u8,\n",
            "x".repeat(98)
        );
        let found = find_language_errors("src/nowhere/a_word.rs", &text);
        let lines: Vec<_> = found.iter().map(|(line, _)| *line).collect();
        assert_eq!(lines, [1, 1, 2, 3, 4, 5, 6], "{found:?}");
        let allowed = "struct Swordfish; // nobody\nf(told::ears(\"word: {}\"));\n";
        assert!(find_language_errors("src/nowhere/keyword.rs", allowed).is_empty());
    }
}
