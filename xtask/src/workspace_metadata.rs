//! `WorkspaceMetadata`: packages and dependencies from `cargo metadata`, so that none is written
//! down twice.

use serde_json::Value;

use crate::shell;

/// Published packages.
pub(crate) const LIBRARY_PACKAGES: [&str; 3] = ["lockgate", "lockgate-axum", "lockgate-actix-web"];

/// Output of `cargo metadata`.
#[derive(Debug)]
pub(crate) struct WorkspaceMetadata(Value);

impl WorkspaceMetadata {
    /// Members of the workspace, without their resolved dependencies.
    pub(crate) fn load() -> Result<Self, String> {
        let mut command = shell::cargo_command(["metadata", "--format-version", "1", "--no-deps"]);
        let output = command.output().map_err(|error| format!("cargo metadata: {error}"))?;
        if !output.status.success() {
            return Err(String::from_utf8_lossy(&output.stderr).trim().to_owned());
        }
        serde_json::from_slice(&output.stdout)
            .map(Self)
            .map_err(|error| format!("cargo metadata wrote something unexpected: {error}"))
    }

    /// Names of a member's direct dependencies, except dev-dependencies.
    pub(crate) fn direct_dependencies(&self, member: &str) -> Result<Vec<String>, String> {
        let dependencies = json_array(&self.package(member)?["dependencies"]);
        let direct = dependencies.iter().filter(|entry| entry["kind"].as_str() != Some("dev"));
        Ok(direct.filter_map(|entry| entry["name"].as_str()).map(str::to_owned).collect())
    }

    fn package(&self, name: &str) -> Result<&Value, String> {
        json_array(&self.0["packages"])
            .iter()
            .find(|package| package["source"].is_null() && package["name"].as_str() == Some(name))
            .ok_or_else(|| format!("there is no package {name} in the workspace"))
    }
}

fn json_array(value: &Value) -> &[Value] {
    value.as_array().map(Vec::as_slice).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use serde_json::json;

    use super::*;

    #[test]
    fn direct_dependencies_exclude_dev_dependencies() {
        let metadata = WorkspaceMetadata(json!({ "packages": [
            { "name": "us", "source": null,
              "dependencies": [{ "name": "a", "kind": null }, { "name": "t", "kind": "dev" }] },
            { "name": "us", "source": "registry+x" },
        ] }));
        assert_eq!(metadata.direct_dependencies("us").unwrap(), ["a"]);
        assert!(metadata.direct_dependencies("them").is_err());
    }

    /// Checks the metadata that crates.io shows, and the licence files of the package.
    #[test]
    fn each_library_has_publishing_metadata() {
        let metadata = WorkspaceMetadata::load().unwrap();
        for library in LIBRARY_PACKAGES {
            let member = metadata.package(library).unwrap();
            for field in ["description", "license", "readme", "repository", "rust_version"] {
                assert!(member[field].is_string(), "{library}: {field}");
            }
            for field in ["keywords", "categories"] {
                assert!((1..=5).contains(&json_array(&member[field]).len()), "{library}: {field}");
            }
            let folder = Path::new(member["manifest_path"].as_str().unwrap()).parent().unwrap();
            for file in ["README.md", "LICENSE-MIT", "LICENSE-APACHE"] {
                assert!(folder.join(file).is_file(), "{library}: {file}");
            }
        }
    }
}
