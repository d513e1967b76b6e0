//! The layers of this crate delegate to the core's: none of their methods may be missing, neither
//! here nor in the pages about them.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

/// Returns the names of the public methods of this type that the sources below `paths` declare.
fn public_methods(type_name: &str, paths: &[&str]) -> BTreeSet<String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut names = BTreeSet::new();
    for file in paths.iter().flat_map(|path| rust_files(&root.join(path))) {
        let source = fs::read_to_string(file).expect("a source of this repository");
        let mut is_in_impl = false;
        for line in source.lines() {
            if let Some(header) = line.strip_prefix("impl") {
                let implementor = header.trim_end_matches(" {").rsplit(' ').next();
                let implementor = implementor.and_then(|name| name.split('<').next());
                is_in_impl = implementor == Some(type_name) && !header.contains(" for ");
            }
            let declared = line.strip_prefix("    pub fn ");
            let declared = declared.or_else(|| line.strip_prefix("    pub async fn "));
            let name = declared.and_then(|rest| rest.split(['(', '<']).next());
            names.extend(name.filter(|_| is_in_impl).map(str::to_owned));
        }
    }
    assert!(names.len() > 2, "{type_name} was found: {names:?}");
    names
}

/// Returns the file, or the files of the folder.
fn rust_files(path: &Path) -> Vec<PathBuf> {
    if path.is_file() {
        return vec![path.to_owned()];
    }
    let entries = fs::read_dir(path).expect("a folder of this repository");
    let paths = entries.map(|entry| entry.expect("readable").path());
    paths.filter(|path| path.extension().is_some_and(|extension| extension == "rs")).collect()
}

#[test]
fn the_rate_limit_layer_has_all_methods_of_the_core() {
    let actix = [
        "integrations/actix-web/src/rate_limit_layer.rs",
        "integrations/actix-web/src/rate_limit_layer",
    ];
    let core = public_methods("RateLimitLayer", &["src/rate_limit/gate"]);
    assert_eq!(public_methods("RateLimitLayer", &actix), core);
}

#[test]
fn the_lock_layer_has_all_methods_of_the_core() {
    let actix =
        ["integrations/actix-web/src/lock_layer.rs", "integrations/actix-web/src/lock_layer"];
    let core = public_methods("LockLayer", &["src/lock/gate"]);
    assert_eq!(public_methods("LockLayer", &actix), core);
}

#[test]
fn the_defer_layer_has_all_methods_of_the_core() {
    let actix =
        ["integrations/actix-web/src/defer_layer.rs", "integrations/actix-web/src/defer_layer"];
    let core = public_methods("DeferLayer", &["src/defer/gate"]);
    assert_eq!(public_methods("DeferLayer", &actix), core);
}

/// The constructors are this crate's own, and `restore_with` is for replayers without a framework.
#[test]
fn the_worker_has_all_methods_of_the_core() {
    let mut actix = public_methods("DeferWorker", &["integrations/actix-web/src/defer_worker.rs"]);
    let mut core = public_methods("DeferWorker", &["src/defer/worker"]);
    for constructor in ["new", "try_new", "from_app", "try_from_app"] {
        assert!(actix.remove(constructor), "{constructor}");
    }
    assert!(core.remove("restore_with"));
    assert_eq!(actix, core);
}

#[test]
fn the_status_routes_have_all_settings_of_the_core() {
    let core = public_methods("StatusResource", &["src/defer/status/status_resource.rs"]);
    for routes in ["actix-web", "axum"] {
        let file = format!("integrations/{routes}/src/status_routes.rs");
        let mut settings = core.clone();
        assert!(settings.remove("new") && settings.remove("parse_request"));
        assert!(settings.remove("mounted_at"), "called by the routes");
        assert_eq!(public_methods("DeferredRoutes", &[&file]), settings);
    }
}

/// A setting that no page names is hard to find. `try_` is the variant for a configuration.
#[test]
fn the_pages_name_all_methods_of_layers_and_workers() {
    for (type_name, sources, page) in [
        ("RateLimitLayer", "src/rate_limit/gate", "rate-limit.md"),
        ("LockLayer", "src/lock/gate", "lock.md"),
        ("DeferLayer", "src/defer/gate", "defer.md"),
        ("DeferWorker", "src/defer/worker", "defer.md"),
        ("QueueWorker", "src/queue", "queue.md"),
    ] {
        let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs").join(page);
        let text = fs::read_to_string(&page).expect("a page of this repository");
        let words: BTreeSet<&str> =
            text.split(|c: char| c != '_' && !c.is_ascii_alphanumeric()).collect();
        let mut names = public_methods(type_name, &[sources]);
        // For replayers without a framework.
        names.remove("restore_with");
        names.retain(|name| !name.starts_with("try_") && !words.contains(&**name));
        assert!(names.is_empty(), "{} does not name {names:?} of {type_name}", page.display());
    }
}
