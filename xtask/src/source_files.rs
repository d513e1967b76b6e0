//! Lists the source files of a folder by their extension.

use std::{
    fs,
    path::{Path, PathBuf},
};

/// Rust files in a folder and its subfolders.
pub(crate) fn rust_files(folder: &Path) -> Result<Vec<PathBuf>, String> {
    source_files(folder, &["rs"])
}

/// Files with one of these extensions in a folder and its subfolders.
pub(crate) fn source_files(folder: &Path, extensions: &[&str]) -> Result<Vec<PathBuf>, String> {
    let mut open_folders = vec![folder.to_path_buf()];
    let mut files = Vec::new();
    while let Some(folder) = open_folders.pop() {
        let entries =
            fs::read_dir(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
        for entry in entries.flatten() {
            let path = entry.path();
            if path.is_dir() {
                open_folders.push(path);
                continue;
            }
            if path.extension().is_some_and(|found| extensions.iter().any(|e| found == *e)) {
                files.push(path);
            }
        }
    }
    files.sort();
    Ok(files)
}
