//! Generates two kinds of sources: the programs `examples/minimal-*` with the settings of the test
//! that runs them, and one module for each Markdown page, so that its code blocks are doc tests.

use std::{
    env,
    error::Error,
    fmt::Write as _,
    fs,
    path::{Path, PathBuf},
};

fn main() -> Result<(), Box<dyn Error>> {
    let root = fs::canonicalize("../..")?;
    let out = PathBuf::from(env::var("OUT_DIR")?);
    println!("cargo::rerun-if-changed=build.rs");
    for framework in ["axum", "actix-web"] {
        let program = root.join(format!("examples/minimal-{framework}/src/main.rs"));
        println!("cargo::rerun-if-changed={}", program.display());
        let program = configure_for_test(&fs::read_to_string(program)?)?;
        let name = format!("minimal_{}.rs", framework.replace('-', "_"));
        fs::write(out.join(name), program)?;
    }
    println!("cargo::rerun-if-changed={}", root.join("README.md").display());
    println!("cargo::rerun-if-changed={}", root.join("docs").display());
    fs::write(out.join("doc_pages.rs"), page_modules(&root)?)?;
    Ok(())
}

/// Lines of the examples, each of which occurs once, and their replacements.
const REPLACEMENTS: [(&str, &str); 3] = [
    (
        r#"Store::connect("redis://127.0.0.1/")"#,
        // The default call timeout is too short for a loaded machine.
        r#"Store::builder(&std::env::var("LOCKGATE_STORE")?).call_timeout(lockgate_tests::TEST_TIMEOUT).connect()"#,
    ),
    (r#""127.0.0.1:3000""#, r#"std::env::var("LISTEN")?"#),
    ("\"refunded\"\n", "lockgate_tests::wait_for_refund_gate().await\n"),
];

fn configure_for_test(program: &str) -> Result<String, String> {
    // `include!` allows no inner doc comments.
    let program: String =
        program.split_inclusive('\n').filter(|line| !line.starts_with("//!")).collect();
    REPLACEMENTS.iter().try_fold(program, |program, (from, to)| {
        match program.matches(from).count() {
            1 => Ok(program.replace(from, to)),
            found => Err(format!("{from} occurs {found} times in a minimal example")),
        }
    })
}

/// One module for the README and for each page of the book, with the page as its documentation.
fn page_modules(root: &Path) -> Result<String, Box<dyn Error>> {
    let mut pages = vec![root.join("README.md")];
    collect_pages(&root.join("docs"), &mut pages)?;
    pages.sort();
    let mut modules = String::new();
    for page in pages {
        let name: String = page
            .strip_prefix(root)?
            .to_string_lossy()
            .to_lowercase()
            .trim_end_matches(".md")
            .replace(|c: char| !c.is_ascii_alphanumeric(), "_");
        writeln!(
            modules,
            "#[doc = include_str!({:?})]\nmod {name} {{}}\n",
            page.display().to_string()
        )?;
    }
    Ok(modules)
}

fn collect_pages(folder: &Path, pages: &mut Vec<PathBuf>) -> Result<(), Box<dyn Error>> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            collect_pages(&path, pages)?;
        } else if path.extension().is_some_and(|extension| extension == "md") {
            pages.push(path);
        }
    }
    Ok(())
}
