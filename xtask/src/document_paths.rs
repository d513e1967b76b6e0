//! Test that every source file which a document names exists, since renames do not reach them.

use std::path::Path;

use crate::{shell, source_files::source_files};

/// Folders with sources that documents name.
const SOURCE_FOLDERS: [&str; 8] =
    ["src", "crates", "integrations", "tests", "xtask", "benches/src", "benches/node", "examples"];

const EXTENSIONS: [&str; 4] = ["rs", "lua", "py", "mjs"];

/// Returns the texts in backticks that end like the name of a source file.
fn named_files(text: &str) -> impl Iterator<Item = &str> {
    let code = text.split('`').skip(1).step_by(2);
    code.filter(|name| {
        let is_path = name.chars().all(|c| c.is_ascii_alphanumeric() || "_-./".contains(c));
        let extension = Path::new(name).extension().and_then(|extension| extension.to_str());
        is_path && extension.is_some_and(|extension| EXTENSIONS.contains(&extension))
    })
}

#[test]
fn files_named_in_documents_exist() {
    let root = shell::workspace_root();
    let folder_files =
        |folder: &str, kinds: &[&str]| source_files(&root.join(folder), kinds).expect("readable");
    let sources: Vec<_> =
        SOURCE_FOLDERS.iter().flat_map(|folder| folder_files(folder, &EXTENSIONS)).collect();
    let mut documents = folder_files("docs", &["md"]);
    documents.extend(["ARCHITECTURE.md", "CONTRIBUTING.md", "README.md"].map(|at| root.join(at)));
    documents.extend(["benches/README.md", "tests/FAULTS.md"].map(|at| root.join(at)));
    let mut missing = Vec::new();
    let mut count = 0;
    for document in documents {
        let text = std::fs::read_to_string(&document).expect("readable");
        for name in named_files(&text) {
            count += 1;
            // `Path::ends_with` compares whole components.
            if !sources.iter().any(|source| source.ends_with(name)) {
                missing.push(format!("{}: {name}", document.display()));
            }
        }
    }
    assert!(count > 50, "only {count} files are named");
    assert!(missing.is_empty(), "{missing:#?}");
}
