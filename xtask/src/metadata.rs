//! What `cargo metadata` tells about the workspace: nothing about it is written down twice.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use crate::shell;

/// The packages whose every feature, dependency and promise is checked.
pub(crate) const LIBRARIES: [&str; 3] = ["lockgate", "lockgate-axum", "lockgate-actix-web"];

#[derive(Debug)]
pub(crate) struct Metadata(Value);

#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Dependency {
    pub(crate) name: String,
    pub(crate) version: String,
    /// The oldest Rust it says it needs; many old crates say nothing.
    pub(crate) rust: Option<String>,
    /// As an SPDX expression.
    pub(crate) license: Option<String>,
    /// Where it comes from.
    pub(crate) source: String,
}

impl Metadata {
    /// Resolved with every feature of the libraries, and of nothing else: the peers that `benches` can be
    /// built with would otherwise add their features to dependencies that they share with us.
    pub(crate) fn load() -> Result<Self, String> {
        let members = Self::ask(&["--no-deps"])?;
        let mut features = Vec::new();
        for library in LIBRARIES {
            let names = members.features(library)?;
            features.extend(names.iter().map(|name| format!("{library}/{name}")));
        }
        Self::ask(&["--features", &features.join(",")])
    }

    fn ask(args: &[&str]) -> Result<Self, String> {
        let mut command = shell::cargo([&["metadata", "--format-version", "1"], args].concat());
        let output = command.output().map_err(|error| format!("cargo metadata: {error}"))?;
        if !output.status.success() {
            return Err(String::from_utf8_lossy(&output.stderr).trim().to_owned());
        }
        serde_json::from_slice(&output.stdout)
            .map(Self)
            .map_err(|error| format!("cargo metadata wrote something unexpected: {error}"))
    }

    /// The features of a workspace member, `default` among them.
    pub(crate) fn features(&self, member: &str) -> Result<Vec<String>, String> {
        let features = self.member(member)?["features"].as_object();
        Ok(features.map(|map| map.keys().cloned().collect()).unwrap_or_default())
    }

    /// Whether it turns on the feature of this name of `library`.
    pub(crate) fn hands_on(
        &self,
        member: &str,
        feature: &str,
        library: &str,
    ) -> Result<bool, String> {
        let turned_on = list(&self.member(member)?["features"][feature]);
        let its = format!("{library}/{feature}");
        Ok(turned_on.iter().any(|name| name.as_str() == Some(&its)))
    }

    /// The oldest Rust a workspace member promises to build with.
    pub(crate) fn rust_version(&self, member: &str) -> Result<String, String> {
        let declared = self.member(member)?["rust_version"].as_str();
        declared.map(str::to_owned).ok_or_else(|| format!("{member} declares no rust-version"))
    }

    /// The names of a member's own dependencies, of any kind but dev.
    pub(crate) fn direct(&self, member: &str) -> Result<Vec<String>, String> {
        let listed = list(&self.member(member)?["dependencies"]);
        let shipped = listed.iter().filter(|one| one["kind"].as_str() != Some("dev"));
        Ok(shipped.filter_map(|one| one["name"].as_str()).map(str::to_owned).collect())
    }

    /// Everything of other people that building these members takes: normal and build
    /// dependencies, all features, all platforms.
    pub(crate) fn tree(&self, members: &[&str]) -> Result<BTreeSet<Dependency>, String> {
        let packages: BTreeMap<&str, &Value> = list(&self.0["packages"])
            .iter()
            .map(|package| (text(&package["id"]), package))
            .collect();
        let nodes: BTreeMap<&str, &Value> = list(&self.0["resolve"]["nodes"])
            .iter()
            .map(|node| (text(&node["id"]), node))
            .collect();
        let mut open = Vec::new();
        for member in members {
            open.push(text(&self.member(member)?["id"]));
        }
        let mut seen = BTreeSet::new();
        while let Some(id) = open.pop() {
            if !seen.insert(id) {
                continue;
            }
            let edges = nodes.get(id).map(|node| list(&node["deps"])).unwrap_or_default();
            open.extend(edges.iter().filter(|edge| shipped(edge)).map(|edge| text(&edge["pkg"])));
        }
        let foreign =
            seen.iter().filter_map(|id| packages.get(id)).filter(|one| !one["source"].is_null());
        Ok(foreign
            .map(|package| Dependency {
                name: text(&package["name"]).to_owned(),
                version: text(&package["version"]).to_owned(),
                rust: package["rust_version"].as_str().map(str::to_owned),
                license: package["license"].as_str().map(str::to_owned),
                source: text(&package["source"]).to_owned(),
            })
            .collect())
    }

    fn member(&self, name: &str) -> Result<&Value, String> {
        list(&self.0["packages"])
            .iter()
            .find(|package| package["source"].is_null() && package["name"].as_str() == Some(name))
            .ok_or_else(|| format!("there is no package {name} in the workspace"))
    }
}

/// Whether an edge of the resolved graph exists outside tests.
fn shipped(edge: &Value) -> bool {
    list(&edge["dep_kinds"]).iter().any(|one| one["kind"].as_str() != Some("dev"))
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map(Vec::as_slice).unwrap_or_default()
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use serde_json::json;

    use super::*;

    fn metadata() -> Metadata {
        let registry = "registry+x";
        let edge =
            |to: &str, kind: Option<&str>| json!({ "pkg": to, "dep_kinds": [{ "kind": kind }] });
        Metadata(json!({
            "packages": [
                { "id": "us", "name": "us", "version": "0.1.0", "source": null, "rust_version": "1.89",
                  "features": { "default": ["redis"], "redis": [], "tower": [] },
                  "dependencies": [{ "name": "a", "kind": null }, { "name": "t", "kind": "dev" }] },
                { "id": "a", "name": "a", "version": "1.0.0", "source": registry, "rust_version": "1.60" },
                { "id": "b", "name": "b", "version": "2.0.0", "source": registry, "rust_version": null },
                { "id": "t", "name": "t", "version": "3.0.0", "source": registry, "rust_version": "1.99" },
                { "id": "fake", "name": "us", "version": "9.0.0", "source": registry },
            ],
            "resolve": { "nodes": [
                { "id": "us", "deps": [edge("a", None), edge("t", Some("dev"))] },
                { "id": "a", "deps": [edge("b", Some("build"))] },
                { "id": "b", "deps": [edge("a", None)] },
                { "id": "t", "deps": [] },
            ] },
        }))
    }

    #[test]
    fn walks_normal_and_build_edges_only() {
        let tree = metadata().tree(&["us"]).unwrap();
        let names: Vec<_> =
            tree.iter().map(|one| (one.name.as_str(), one.rust.as_deref())).collect();
        assert_eq!(names, [("a", Some("1.60")), ("b", None)]);
    }

    #[test]
    fn reads_features_and_direct_dependencies() {
        assert_eq!(metadata().features("us").unwrap(), ["default", "redis", "tower"]);
        assert_eq!(metadata().direct("us").unwrap(), ["a"]);
        assert_eq!(metadata().rust_version("us").unwrap(), "1.89");
        assert!(metadata().features("them").is_err());
    }

    /// What its page on crates.io shows, and the texts of its licences in the package.
    #[test]
    fn each_library_can_be_published() {
        let metadata = Metadata::ask(&["--no-deps"]).unwrap();
        for library in LIBRARIES {
            let member = metadata.member(library).unwrap();
            for field in ["description", "license", "readme", "repository", "rust_version"] {
                assert!(member[field].is_string(), "{library}: {field}");
            }
            for field in ["keywords", "categories"] {
                assert!((1..=5).contains(&list(&member[field]).len()), "{library}: {field}");
            }
            let folder = Path::new(text(&member["manifest_path"])).parent().unwrap();
            for file in ["README.md", "LICENSE-MIT", "LICENSE-APACHE"] {
                assert!(folder.join(file).is_file(), "{library}: {file}");
            }
        }
    }
}
