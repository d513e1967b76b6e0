//! Check of the direction of imports: modules import only lower modules, and only the store names
//! Redis.
//!
//! The check reads text, not types. It resolves the top-level module of every path that starts at
//! `crate`, `super` or `self`.

mod path_scanner;

use std::{collections::BTreeMap, fs, path::Path};

use self::path_scanner::{blank_comments_and_strings, find_paths};
use crate::{
    shell,
    source_files::rust_files,
    workspace_metadata::{LIBRARY_PACKAGES, WorkspaceMetadata},
};

/// Level of every top-level module under `src/`. A module imports only modules of lower levels.
/// Modules of the same level do not import each other, except at level 0.
const MODULE_LEVELS: [(&str, u8); 28] = [
    ("admin", 4),
    ("console", 5),
    ("driver", 5),
    ("http_replay", 5),
    ("metrics", 4),
    ("middleware", 4),
    ("testing", 4),
    ("quorum", 4),
    ("serving", 4),
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
    ("duration_text", 0),
    ("durations", 0),
    ("instruments", 0),
    ("json_time", 0),
    ("outage", 0),
    ("throttle", 0),
    ("trace", 0),
];

/// Words in code that only the store may use.
const REDIS_NAMES: [&str; 3] = ["redis", "bb8", "evalsha"];

pub(crate) fn check(metadata: &WorkspaceMetadata) -> Result<(), String> {
    let root = shell::workspace_root();
    let src = root.join("src");
    let library = read_file(&src.join("lib.rs"))?;
    let exports = root_exports(&library);
    let mut found = Vec::new();
    let mut files = 0;
    for file in rust_files(&src)?.into_iter().filter(|file| !is_test_file(&src, file)) {
        let text = read_file(&file)?;
        let module = module_path(file.strip_prefix(&src).unwrap_or(&file));
        let errors = check_module(&module, &text, &exports);
        found.extend(errors.iter().map(|error| format_error(&root, &file, error)));
        files += 1;
    }
    for file in rust_files(&root.join("integrations"))? {
        if file.components().any(|part| part.as_os_str() == "src") {
            let text = read_file(&file)?;
            let errors = find_redis_names(&text);
            found.extend(errors.iter().map(|error| format_error(&root, &file, error)));
            files += 1;
        }
    }
    for library in &LIBRARY_PACKAGES[1..] {
        let direct = metadata.direct_dependencies(library)?;
        let bad = direct.iter().filter(|name| REDIS_NAMES.iter().any(|word| name.contains(word)));
        found.extend(bad.map(|name| format!("{library} depends on {name}: only the core may")));
    }
    if found.is_empty() {
        println!("{files} files: imports go downwards, and only the store names Redis.");
        Ok(())
    } else {
        Err(found.join("\n"))
    }
}

/// Line number and message.
type ImportError = (usize, String);

fn format_error(root: &Path, file: &Path, (line, message): &ImportError) -> String {
    format!("{}:{line}: {message}", file.strip_prefix(root).unwrap_or(file).display())
}

/// Returns the errors of one file of the library.
fn check_module(
    module: &[String],
    text: &str,
    exports: &BTreeMap<String, String>,
) -> Vec<ImportError> {
    // `lib.rs` only re-exports the modules.
    let Some(importer) = module.first() else {
        return Vec::new();
    };
    let Some(level) = module_level(importer) else {
        let message = format!(
            "the module `{importer}` has no level of imports (xtask/src/import_direction_check.rs)"
        );
        return vec![(1, message)];
    };
    let mut found = if importer == "store" { Vec::new() } else { find_redis_names(text) };
    for path in find_paths(text) {
        let Some(target) = path.target_module(module) else {
            continue;
        };
        if target == "*" {
            found.push((
                path.line,
                "imports everything from the crate root: name what is meant".into(),
            ));
            continue;
        }
        let imported = exports.get(&target).unwrap_or(&target);
        let Some(imported_level) = module_level(imported) else {
            continue;
        };
        let is_downwards = imported_level < level || (imported_level, level) == (0, 0);
        if imported != importer && !is_downwards {
            found.push((path.line, format!("`{importer}` must not import from `{imported}`")));
        }
    }
    found
}

fn module_level(module: &str) -> Option<u8> {
    MODULE_LEVELS.iter().find(|(name, _)| *name == module).map(|(_, level)| *level)
}

/// Tests are exempt: faults of a store are best shown through the lock engine.
fn is_test_file(src: &Path, file: &Path) -> bool {
    let relative = file.strip_prefix(src).unwrap_or(file);
    relative.iter().any(|part| part == "tests" || part == "tests.rs")
}

/// Finds the code lines that name Redis or its script calls. Comments and strings are ignored.
fn find_redis_names(text: &str) -> Vec<ImportError> {
    let code = blank_comments_and_strings(text);
    let mut found = Vec::new();
    for (index, line) in code.lines().enumerate() {
        let lower = line.to_lowercase();
        if let Some(name) = REDIS_NAMES.iter().find(|name| lower.contains(**name)) {
            found.push((index + 1, format!("names `{name}`: only src/store may")));
        }
    }
    found
}

/// Maps each name that `lib.rs` exports to its module: `crate::Store` is an import from `store`,
/// like `crate::store::Store`.
fn root_exports(library: &str) -> BTreeMap<String, String> {
    // `pub use gate::Gate` is the same as `pub use self::gate::Gate`.
    let spelt_out =
        library.replace("pub use self::", "pub use ").replace("pub use ", "pub use self::");
    let mut map = BTreeMap::new();
    for path in find_paths(&spelt_out) {
        if let [_, module, .., name] = path.segments.as_slice() {
            map.insert(path.alias.clone().unwrap_or_else(|| name.clone()), module.clone());
        }
    }
    map
}

/// Module path of a file: `store/redis/mod.rs` is `[store, redis]`, `gate.rs` is `[gate]`, `lib.rs`
/// is empty.
fn module_path(file: &Path) -> Vec<String> {
    let stems = file.with_extension("");
    let mut path: Vec<String> =
        stems.iter().map(|part| part.to_string_lossy().into_owned()).collect();
    if path.last().is_some_and(|last| last == "mod" || last == "lib") {
        path.pop();
    }
    path
}

fn read_file(file: &Path) -> Result<String, String> {
    fs::read_to_string(file).map_err(|error| format!("{}: {error}", file.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check_source(file: &str, text: &str) -> Vec<String> {
        let exports = root_exports(
            "mod gate; pub use gate::Gate; pub use self::{store::{Store, Held as Hold}};",
        );
        let found = check_module(&module_path(Path::new(file)), text, &exports);
        found.into_iter().map(|(line, message)| format!("{line}: {message}")).collect()
    }

    #[test]
    fn imports_from_lower_modules_are_allowed() {
        let text =
            "use crate::{gate::{Gate, Verdict}, store::Store, Error};\nuse super::quota::Quota;";
        assert!(check_source("rate_limit/gate.rs", text).is_empty());
        assert!(check_source("key.rs", "use crate::error::Error;").is_empty());
        assert!(
            check_source("middleware/future.rs", "use crate::{defer, lock::LockLayer, Store};")
                .is_empty()
        );
    }

    #[test]
    fn imports_from_higher_or_equal_modules_are_reported() {
        let text = "use std::fmt;\nuse crate::{\n    key::Key,\n    gate::Gate,\n};";
        assert_eq!(check_source("store/mod.rs", text), ["4: `store` must not import from `gate`"]);
        assert_eq!(check_source("lock/mod.rs", "use crate::defer::Job;").len(), 1);
        assert_eq!(check_source("gate.rs", "fn f() { crate::lock::go() }").len(), 1);
        assert_eq!(check_source("clock.rs", "use crate::store::{self, Store};").len(), 2);
    }

    #[test]
    fn root_exports_count_as_imports_of_their_module() {
        assert_eq!(check_source("store/mod.rs", "use crate::Gate;").len(), 1);
        assert_eq!(check_source("key.rs", "use crate::Hold;").len(), 1);
        assert!(check_source("gate.rs", "use crate::{Gate, Store};").is_empty());
        assert_eq!(check_source("gate.rs", "use crate::*;").len(), 1);
    }

    #[test]
    fn super_paths_are_resolved_to_their_module() {
        assert_eq!(check_source("store/redis/mod.rs", "use super::super::lock::X;").len(), 1);
        assert!(check_source("store/redis/mod.rs", "use super::lock::X;").is_empty());
        let inline = "mod tests {\n    use super::lock::X;\n}\nuse super::lock::X;";
        assert_eq!(check_source("gate.rs", inline), ["4: `gate` must not import from `lock`"]);
    }

    #[test]
    fn comments_and_strings_are_ignored() {
        let text = "//! See [`crate::lock`], over Redis.\n/* crate::lock /* redis */ */\n\
                    const A: &str = \"crate::lock redis \\\" bb8\"; const B: &str = r#\"redis \"x\" \"#;\n\
                    const C: char = '\"'; fn f<'a>(_: &'a str) {} // redis";
        assert!(check_source("gate.rs", text).is_empty());
        assert_eq!(
            blank_comments_and_strings("'\"' redis '\\'' bb8 b\"redis\""),
            "    redis      bb8 b       "
        );
    }

    #[test]
    fn redis_names_outside_the_store_are_reported() {
        assert_eq!(find_redis_names("fn f() {}\nuse redis::Client;").len(), 1);
        assert_eq!(find_redis_names("let pool: Bb8Pool;").len(), 1);
        assert!(
            find_redis_names("#[cfg(feature = \"redis\")]\nuse lockgate::StoreBuilder;").is_empty()
        );
        assert!(check_source("store/redis/mod.rs", "use redis::Client;").is_empty());
        assert_eq!(check_source("error.rs", "use redis::RedisError;").len(), 1);
    }

    /// A service depends on one of the three crates alone. So an integration re-exports every name
    /// of the library and passes on every feature.
    #[test]
    fn integrations_export_all_core_names_and_features() {
        let text = |file: &str| read_file(&shell::workspace_root().join(file)).unwrap();
        let features = |manifest: &str| -> Vec<String> {
            let after = text(manifest).split_once("[features]\n").unwrap().1.to_owned();
            let lines = after.split("\n[").next().unwrap().lines();
            let named = lines.filter(|line| !line.starts_with('#'));
            named.filter_map(|line| Some(line.split_once(" = ")?.0.to_owned())).collect()
        };
        let names = root_exports(&text("src/lib.rs"));
        assert!(names.contains_key("Store") && names.contains_key("StoreBuilder"), "{names:?}");
        for (integration, service) in [("axum", "GateService"), ("actix-web", "GateMiddleware")] {
            let library = text(&format!("integrations/{integration}/src/lib.rs"));
            let exported =
                root_exports(&library.replace("pub use lockgate::", "pub use self::lockgate::"));
            // `SharedReply` is only for authors of drivers.
            let missing: Vec<_> = names
                .keys()
                .filter(|name| *name != "SharedReply" && !exported.contains_key(*name))
                .collect();
            assert!(missing.is_empty(), "{integration} does not export {missing:?}");
            // The service type that the integration's layers return.
            assert!(exported.contains_key(service), "{integration}: {exported:?}");
            let passed_on = features(&format!("integrations/{integration}/Cargo.toml"));
            let mut missing = features("Cargo.toml");
            // The feature `tower` is always on for axum and never used by actix-web; `serve` is
            // always on for both.
            let is_fixed = |name: &str| ["tower", "serve"].contains(&name);
            missing.retain(|name| !is_fixed(name) && !passed_on.contains(name));
            assert!(missing.is_empty(), "{integration} does not pass on {missing:?}");
            let docs: Vec<_> = library.lines().filter(|line| line.starts_with("//! | ")).collect();
            let docs = docs.join("\n");
            let mut undocumented = passed_on;
            undocumented.retain(|name| name != "default" && !docs.contains(&format!("`{name}`")));
            assert!(undocumented.is_empty(), "{integration} does not document {undocumented:?}");
        }
    }

    #[test]
    fn module_without_a_level_is_reported() {
        assert_eq!(check_source("attic/mod.rs", "").len(), 1);
        assert!(check_source("lib.rs", "pub use self::gate::Gate;").is_empty());
    }
}
