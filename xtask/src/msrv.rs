//! The oldest Rust we promise to build with: declared, and true of what we depend on.

use std::fs;

use crate::{
    metadata::{Dependency, LIBRARIES, Metadata},
    shell,
};

/// Checks the declarations, says what it checked, and builds with that Rust if it is installed.
pub(crate) fn check(metadata: &Metadata) -> Result<(), String> {
    let ours = metadata.rust_version(LIBRARIES[0])?;
    for library in LIBRARIES {
        let declared = metadata.rust_version(library)?;
        if declared != ours {
            return Err(format!(
                "{library} declares Rust {declared}, {} declares {ours}",
                LIBRARIES[0]
            ));
        }
    }
    let tree = metadata.tree(&LIBRARIES)?;
    let newer: Vec<_> = tree.iter().filter(|one| too_new(one, &ours)).map(told).collect();
    if !newer.is_empty() {
        return Err(format!("these dependencies need more than Rust {ours}: {}", newer.join(", ")));
    }
    let silent = tree.iter().filter(|one| one.rust.is_none()).count();
    println!(
        "Rust {ours}: none of the {} normal and build dependencies of the libraries (all features, \
         all platforms) declares more; {silent} declare nothing.",
        tree.len()
    );
    lint_is_on()?;
    println!(
        "clippy::incompatible_msrv is on: no use of std newer than Rust {ours} passes clippy."
    );
    match installed(&ours) {
        Some(toolchain) => {
            let mut args = vec!["run", &toolchain, "cargo", "check", "--lib", "--all-features"];
            args.extend(LIBRARIES.iter().flat_map(|library| ["-p", library]));
            shell::run(shell::program("rustup", args))
        }
        None => {
            println!("Skipped: a build with Rust {ours} itself; that toolchain is not installed.");
            Ok(())
        }
    }
}

fn told(one: &Dependency) -> String {
    format!("{} {} ({})", one.name, one.version, one.rust.as_deref().unwrap_or("?"))
}

fn too_new(one: &Dependency, ours: &str) -> bool {
    one.rust.as_deref().is_some_and(|rust| numbers(rust) > numbers(ours))
}

/// `1.89` and `1.89.0` are the same promise.
fn numbers(version: &str) -> [u32; 3] {
    let mut parts = version.split('.').map(|part| part.parse().unwrap_or(u32::MAX));
    [(); 3].map(|()| parts.next().unwrap_or(0))
}

/// The lint is on as soon as a rust-version is declared, unless somebody turns it off.
fn lint_is_on() -> Result<(), String> {
    for file in ["Cargo.toml", "clippy.toml", ".clippy.toml"] {
        let text = fs::read_to_string(shell::root().join(file)).unwrap_or_default();
        if let Some(line) = text.lines().find(|line| turns_off(line)) {
            return Err(format!("{file} weakens the MSRV check: `{}`", line.trim()));
        }
    }
    Ok(())
}

fn turns_off(line: &str) -> bool {
    let line = line.split('#').next().unwrap_or_default();
    let Some((name, value)) = line.split_once('=') else {
        return false;
    };
    match name.trim() {
        "incompatible_msrv" | "suspicious" | "all" => value.contains("allow"),
        "msrv" => true,
        _ => false,
    }
}

/// The installed toolchain of that version, if there is one.
fn installed(version: &str) -> Option<String> {
    let listed = shell::output(shell::program("rustup", ["toolchain", "list"]))?;
    named(&listed, version)
}

fn named(listed: &str, version: &str) -> Option<String> {
    let names = listed.lines().filter_map(|line| line.split_whitespace().next());
    let wanted = numbers(version);
    let found = names.filter(|name| {
        let number = name.split('-').next().unwrap_or_default();
        number.starts_with(|first: char| first.is_ascii_digit())
            && numbers(number)[..2] == wanted[..2]
    });
    found.map(str::to_owned).max()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn compares_by_number() {
        assert!(numbers("1.9") < numbers("1.89"));
        assert_eq!(numbers("1.89"), numbers("1.89.0"));
        let one = |rust: Option<&str>| Dependency {
            name: "a".into(),
            version: "1.0.0".into(),
            rust: rust.map(str::to_owned),
            license: None,
            source: String::new(),
        };
        assert!(too_new(&one(Some("1.90")), "1.89"));
        assert!(too_new(&one(Some("1.89.1")), "1.89"));
        assert!(!too_new(&one(Some("1.89.0")), "1.89"));
        assert!(!too_new(&one(None), "1.89"));
    }

    #[test]
    fn sees_what_turns_the_lint_off() {
        assert!(turns_off("incompatible_msrv = \"allow\""));
        assert!(turns_off("msrv = \"1.95\""));
        assert!(!turns_off("doc_markdown = \"allow\""));
        assert!(!turns_off("# msrv = \"1.95\""));
        assert!(!turns_off("suspicious = { level = \"warn\", priority = -1 }"));
    }

    #[test]
    fn finds_the_toolchain() {
        let listed = "stable-x86_64-unknown-linux-gnu (active, default)\n1.89.0-x86_64-unknown-linux-gnu\n1.95.0-x86_64-unknown-linux-gnu\n";
        assert_eq!(named(listed, "1.89").as_deref(), Some("1.89.0-x86_64-unknown-linux-gnu"));
        assert_eq!(named(listed, "1.90"), None);
    }
}
