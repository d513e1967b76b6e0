//! The direction of imports: top to bottom, never back, and only the store knows Redis.
//!
//! A check of the text, not of the types: it reads every path that starts at `crate`, `super` or
//! `self` and looks in which room it ends.

mod text;

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

use self::text::{code_of, paths};
use crate::{
    metadata::{LIBRARIES, Metadata},
    shell,
};

/// Every room under `src/` and how high it stands; an import goes to a lower one. Rooms of one
/// height do not know each other, save those at the bottom.
const ROOMS: [(&str, u8); 19] = [
    ("layer_macros", 6),
    ("remote", 5),
    ("middleware", 4),
    ("testing", 4),
    ("quorum", 4),
    ("rate_limit", 3),
    ("lock", 3),
    ("defer", 3),
    ("queue", 3),
    ("gate", 2),
    ("seal", 2),
    ("store", 1),
    ("outbound", 0),
    ("key", 0),
    ("reply", 0),
    ("error", 0),
    ("clock", 0),
    ("outage", 0),
    ("throttle", 0),
];

/// What only the store may name.
const REDIS: [&str; 3] = ["redis", "bb8", "evalsha"];

pub(crate) fn check(metadata: &Metadata) -> Result<(), String> {
    let root = shell::root();
    let src = root.join("src");
    let library = read(&src.join("lib.rs"))?;
    let exports = exports(&library);
    let mut found = Vec::new();
    let mut files = 0;
    for file in rust_files(&src)?.into_iter().filter(|file| !is_test(&src, file)) {
        let text = read(&file)?;
        let module = module_path(file.strip_prefix(&src).unwrap_or(&file));
        let complaints = core(&module, &text, &exports);
        found.extend(complaints.iter().map(|(line, what)| at(&root, &file, *line, what)));
        files += 1;
    }
    for file in rust_files(&root.join("integrations"))? {
        if file.components().any(|part| part.as_os_str() == "src") {
            let text = read(&file)?;
            found.extend(
                names_redis(&text).iter().map(|(line, what)| at(&root, &file, *line, what)),
            );
            files += 1;
        }
    }
    for library in &LIBRARIES[1..] {
        let direct = metadata.direct(library)?;
        let bad = direct.iter().filter(|name| REDIS.iter().any(|word| name.contains(word)));
        found.extend(bad.map(|name| format!("{library} depends on {name}: only the core may")));
    }
    if found.is_empty() {
        println!("{files} files: imports go downwards, and only the store names Redis.");
        Ok(())
    } else {
        Err(found.join("\n"))
    }
}

/// A line and what is wrong with it.
type Complaint = (usize, String);

fn at(root: &Path, file: &Path, line: usize, what: &str) -> String {
    format!("{}:{line}: {what}", file.strip_prefix(root).unwrap_or(file).display())
}

/// What is wrong with one file of the core.
fn core(module: &[String], text: &str, exports: &BTreeMap<String, String>) -> Vec<Complaint> {
    // lib.rs only lists what the rooms export.
    let Some(here) = module.first() else {
        return Vec::new();
    };
    let Some(height) = height(here) else {
        let what = format!(
            "the module `{here}` has no place in the order of imports (xtask/src/imports.rs)"
        );
        return vec![(1, what)];
    };
    let mut found = if here == "store" { Vec::new() } else { names_redis(text) };
    for path in paths(text) {
        let Some(target) = path.target(module) else {
            continue;
        };
        if target == "*" {
            found.push((
                path.line,
                "imports everything from the crate root: name what is meant".into(),
            ));
            continue;
        }
        let room = exports.get(&target).unwrap_or(&target);
        let Some(their) = self::height(room) else {
            continue;
        };
        if room != here && their >= height && (their, height) != (0, 0) {
            found.push((path.line, format!("`{here}` must not import from `{room}`")));
        }
    }
    found
}

fn height(room: &str) -> Option<u8> {
    ROOMS.iter().find(|(name, _)| *name == room).map(|(_, height)| *height)
}

/// Tests see what they have to: a store's own faults show best in what a lock makes of them.
fn is_test(src: &Path, file: &Path) -> bool {
    let inside = file.strip_prefix(src).unwrap_or(file);
    inside.iter().any(|part| part == "tests" || part == "tests.rs")
}

/// The code of a file that names Redis or its script calls; comments and strings may.
fn names_redis(text: &str) -> Vec<Complaint> {
    let code = code_of(text);
    let mut found = Vec::new();
    for (at, line) in code.lines().enumerate() {
        let small = line.to_lowercase();
        if let Some(word) = REDIS.iter().find(|word| small.contains(**word)) {
            found.push((at + 1, format!("names `{word}`: only src/store may")));
        }
    }
    found
}

/// Which room each name comes from that `lib.rs` exports at the root: `crate::Store` is an import
/// from `store` as much as `crate::store::Store`.
fn exports(library: &str) -> BTreeMap<String, String> {
    // `pub use gate::Gate` says the same as `pub use self::gate::Gate`.
    let spelt_out =
        library.replace("pub use self::", "pub use ").replace("pub use ", "pub use self::");
    let mut map = BTreeMap::new();
    for path in paths(&spelt_out) {
        if let [_, room, .., name] = path.segments.as_slice() {
            map.insert(path.alias.clone().unwrap_or_else(|| name.clone()), room.clone());
        }
    }
    map
}

/// `store/redis/mod.rs` is `[store, redis]`, `gate.rs` is `[gate]`, `lib.rs` is the root.
fn module_path(file: &Path) -> Vec<String> {
    let stems = file.with_extension("");
    let mut path: Vec<String> =
        stems.iter().map(|part| part.to_string_lossy().into_owned()).collect();
    if path.last().is_some_and(|last| last == "mod" || last == "lib") {
        path.pop();
    }
    path
}

pub(crate) fn rust_files(folder: &Path) -> Result<Vec<PathBuf>, String> {
    let mut open = vec![folder.to_path_buf()];
    let mut files = Vec::new();
    while let Some(folder) = open.pop() {
        let entries =
            fs::read_dir(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
        for entry in entries.flatten() {
            let path = entry.path();
            if path.is_dir() {
                open.push(path);
            } else if path.extension().is_some_and(|ending| ending == "rs") {
                files.push(path);
            }
        }
    }
    files.sort();
    Ok(files)
}

fn read(file: &Path) -> Result<String, String> {
    fs::read_to_string(file).map_err(|error| format!("{}: {error}", file.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn complaints(file: &str, text: &str) -> Vec<String> {
        let exports =
            exports("mod gate; pub use gate::Gate; pub use self::{store::{Store, Held as Hold}};");
        let found = core(&module_path(Path::new(file)), text, &exports);
        found.into_iter().map(|(line, what)| format!("{line}: {what}")).collect()
    }

    #[test]
    fn downwards_is_fine() {
        let text =
            "use crate::{gate::{Gate, Verdict}, store::Store, Error};\nuse super::quota::Quota;";
        assert!(complaints("rate_limit/gate.rs", text).is_empty());
        assert!(complaints("key.rs", "use crate::error::Error;").is_empty());
        assert!(
            complaints("middleware/future.rs", "use crate::{defer, lock::LockGate, Store};")
                .is_empty()
        );
    }

    #[test]
    fn upwards_and_sideways_is_not() {
        let text = "use std::fmt;\nuse crate::{\n    key::Key,\n    gate::Gate,\n};";
        assert_eq!(complaints("store/mod.rs", text), ["4: `store` must not import from `gate`"]);
        assert_eq!(complaints("lock/mod.rs", "use crate::defer::Job;").len(), 1);
        assert_eq!(complaints("gate.rs", "fn f() { crate::lock::go() }").len(), 1);
        assert_eq!(complaints("clock.rs", "use crate::store::{self, Store};").len(), 2);
    }

    #[test]
    fn a_name_at_the_root_is_in_its_room() {
        assert_eq!(complaints("store/mod.rs", "use crate::Gate;").len(), 1);
        assert_eq!(complaints("key.rs", "use crate::Hold;").len(), 1);
        assert!(complaints("gate.rs", "use crate::{Gate, Store};").is_empty());
        assert_eq!(complaints("gate.rs", "use crate::*;").len(), 1);
    }

    #[test]
    fn super_is_followed_to_the_root() {
        assert_eq!(complaints("store/redis/mod.rs", "use super::super::lock::X;").len(), 1);
        assert!(complaints("store/redis/mod.rs", "use super::lock::X;").is_empty());
        let inline = "mod tests {\n    use super::lock::X;\n}\nuse super::lock::X;";
        assert_eq!(complaints("gate.rs", inline), ["4: `gate` must not import from `lock`"]);
    }

    #[test]
    fn comments_and_strings_are_no_code() {
        let text = "//! See [`crate::lock`], over Redis.\n/* crate::lock /* redis */ */\n\
                    const A: &str = \"crate::lock redis \\\" bb8\"; const B: &str = r#\"redis \"x\" \"#;\n\
                    const C: char = '\"'; fn f<'a>(_: &'a str) {} // redis";
        assert!(complaints("gate.rs", text).is_empty());
        assert_eq!(code_of("'\"' redis '\\'' bb8 b\"redis\""), "    redis      bb8 b       ");
    }

    #[test]
    fn only_the_store_names_redis() {
        assert_eq!(names_redis("fn f() {}\nuse redis::Client;").len(), 1);
        assert_eq!(names_redis("let pool: Bb8Pool;").len(), 1);
        assert!(names_redis("#[cfg(feature = \"redis\")]\nuse lockgate::StoreBuilder;").is_empty());
        assert!(complaints("store/redis/mod.rs", "use redis::Client;").is_empty());
        assert_eq!(complaints("error.rs", "use redis::RedisError;").len(), 1);
    }

    /// A service has one dependency of the three: what the core takes and returns can be named from it, and
    /// what a sentence of the core says to switch on can be.
    #[test]
    fn integrations_have_the_names_and_features_of_the_core() {
        let text = |file: &str| read(&shell::root().join(file)).unwrap();
        let features = |manifest: &str| -> Vec<String> {
            let after = text(manifest).split_once("[features]\n").unwrap().1.to_owned();
            let lines = after.split("\n[").next().unwrap().lines();
            let named = lines.filter(|line| !line.starts_with('#'));
            named.filter_map(|line| Some(line.split_once(" = ")?.0.to_owned())).collect()
        };
        let names = exports(&text("src/lib.rs"));
        assert!(names.contains_key("Store") && names.contains_key("StoreBuilder"), "{names:?}");
        for (integration, service) in [("axum", "GateService"), ("actix-web", "GateMiddleware")] {
            let library = text(&format!("integrations/{integration}/src/lib.rs"));
            let theirs =
                exports(&library.replace("pub use lockgate::", "pub use self::lockgate::"));
            // That one is for those who write a driver.
            let missing: Vec<_> = names
                .keys()
                .filter(|name| *name != "SharedReply" && !theirs.contains_key(*name))
                .collect();
            assert!(missing.is_empty(), "{integration} does not export {missing:?}");
            // What its layers make of a service.
            assert!(theirs.contains_key(service), "{integration}: {theirs:?}");
            let theirs = features(&format!("integrations/{integration}/Cargo.toml"));
            let mut missing = features("Cargo.toml");
            // The tower driver: the one for axum has it always, the one for actix-web never.
            missing.retain(|name| name != "tower" && !theirs.contains(name));
            assert!(missing.is_empty(), "{integration} does not pass on {missing:?}");
            let docs: Vec<_> = library.lines().filter(|line| line.starts_with("//! | ")).collect();
            let docs = docs.join("\n");
            let mut untold = theirs;
            untold.retain(|name| name != "default" && !docs.contains(&format!("`{name}`")));
            assert!(untold.is_empty(), "{integration} does not tell of {untold:?}");
        }
    }

    #[test]
    fn a_new_room_needs_a_place() {
        assert_eq!(complaints("attic/mod.rs", "").len(), 1);
        assert!(complaints("lib.rs", "pub use self::gate::Gate;").is_empty());
    }
}
