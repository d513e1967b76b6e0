//! What of `deny.toml` can be checked without cargo-deny: the licences and the origin of all that is shipped.

use crate::{
    metadata::{Dependency, LIBRARIES, Metadata},
    shell,
};

/// Where crates come from.
const REGISTRY: &str = "registry+https://github.com/rust-lang/crates.io-index";

pub(crate) fn check(metadata: &Metadata) -> Result<(), String> {
    let file = shell::root().join("deny.toml");
    let text = std::fs::read_to_string(file).map_err(|error| format!("deny.toml: {error}"))?;
    let allowed = allowed(&text);
    let shipped = metadata.tree(&LIBRARIES)?;
    let wrong: Vec<_> = shipped.iter().filter_map(|one| fault(one, &allowed)).collect();
    if wrong.is_empty() {
        println!(
            "{} dependencies: their licences are allowed, their origin is known",
            shipped.len()
        );
        return Ok(());
    }
    Err(wrong.join("\n"))
}

fn fault(one: &Dependency, allowed: &[&str]) -> Option<String> {
    let Dependency { name, version, license, source, .. } = one;
    if source != REGISTRY {
        return Some(format!("{name} {version} comes from {source}"));
    }
    match license {
        Some(text) if is_allowed(text, allowed) => None,
        Some(text) => {
            Some(format!("{name} {version} is under {text}, which deny.toml does not allow"))
        }
        None => Some(format!("{name} {version} names no licence")),
    }
}

/// The list in `[licenses]`.
fn allowed(text: &str) -> Vec<&str> {
    let list = text.split("\nallow = [").nth(1).and_then(|rest| rest.split("\n]").next());
    list.unwrap_or_default().lines().filter_map(|line| line.split('"').nth(1)).collect()
}

/// An SPDX expression: one side of each OR, both of each AND. An exception (`WITH`) is a licence of its own.
fn is_allowed(text: &str, allowed: &[&str]) -> bool {
    let text = text.replace('/', " OR ").replace('(', " ( ").replace(')', " ) ");
    let mut words = text.split_whitespace().peekable();
    let well = any(&mut words, allowed);
    well && words.next().is_none()
}

type Words<'a> = std::iter::Peekable<std::str::SplitWhitespace<'a>>;

fn any(words: &mut Words<'_>, allowed: &[&str]) -> bool {
    let mut well = all(words, allowed);
    while words.next_if_eq(&"OR").is_some() {
        // Read in any case.
        well |= all(words, allowed);
    }
    well
}

fn all(words: &mut Words<'_>, allowed: &[&str]) -> bool {
    let mut well = one(words, allowed);
    while words.next_if_eq(&"AND").is_some() {
        well &= one(words, allowed);
    }
    well
}

fn one(words: &mut Words<'_>, allowed: &[&str]) -> bool {
    match words.next() {
        Some("(") => {
            let well = any(words, allowed);
            words.next_if_eq(&")").is_some() && well
        }
        Some(name) if words.next_if_eq(&"WITH").is_some() => {
            let whole = format!("{name} WITH {}", words.next().unwrap_or_default());
            allowed.contains(&whole.as_str())
        }
        Some(name) => allowed.contains(&name),
        None => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expressions_are_read() {
        let allowed = ["MIT", "ISC", "Apache-2.0"];
        for (text, well) in [
            ("MIT", true),
            ("MIT OR Apache-2.0", true),
            ("MIT/Unlicense", true),
            ("GPL-3.0", false),
            ("Apache-2.0 AND ISC", true),
            ("MIT AND GPL-3.0", false),
            ("(MIT OR GPL-3.0) AND Apache-2.0", true),
            ("GPL-3.0 OR (MIT AND GPL-2.0)", false),
            ("Apache-2.0 WITH LLVM-exception", false),
            ("Apache-2.0 WITH LLVM-exception OR MIT", true),
            ("MIT MIT", false),
            ("", false),
        ] {
            assert_eq!(is_allowed(text, &allowed), well, "{text}");
        }
    }

    #[test]
    fn the_list_is_that_of_the_file() {
        let text = include_str!("../../deny.toml");
        let allowed = allowed(text);
        assert!(allowed.contains(&"MIT") && allowed.contains(&"Apache-2.0"), "{allowed:?}");
        assert!(!allowed.iter().any(|name| name.contains(' ')), "{allowed:?}");
    }

    #[test]
    fn what_comes_from_elsewhere_is_told_of() {
        let one = |license: Option<&str>, source: &str| Dependency {
            name: "a".into(),
            version: "1".into(),
            rust: None,
            license: license.map(str::to_owned),
            source: source.into(),
        };
        assert_eq!(fault(&one(Some("MIT"), REGISTRY), &["MIT"]), None);
        for (license, source) in [(Some("MIT"), "git+x"), (None, REGISTRY), (Some("X"), REGISTRY)] {
            assert!(fault(&one(license, source), &["MIT"]).is_some());
        }
    }
}
