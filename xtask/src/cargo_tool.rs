//! `CargoTool`: the programs of cargo that the tasks need. A missing one is installed, in the
//! version that CI uses.

use crate::shell;

/// Program that `cargo install` provides.
#[derive(Debug)]
pub(crate) struct CargoTool {
    /// Name of the package and of its program.
    name: &'static str,
    /// Version to install if the tool is missing. An installed tool is used whatever its version.
    version: &'static str,
    /// Builds the tool without optimisation, where optimising takes longer than the work of the
    /// tool.
    debug_build: bool,
    /// Builds the tool with its default features.
    default_features: bool,
}

pub(crate) const CARGO_NEXTEST: CargoTool = CargoTool {
    name: "cargo-nextest",
    version: "0.9.143",
    debug_build: false,
    default_features: true,
};
pub(crate) const CARGO_DENY: CargoTool =
    CargoTool { name: "cargo-deny", version: "0.20.2", debug_build: true, default_features: true };
pub(crate) const CARGO_HACK: CargoTool =
    CargoTool { name: "cargo-hack", version: "0.6.46", debug_build: true, default_features: true };
/// The default features add an HTTP server and a search index; `build` needs neither.
pub(crate) const MDBOOK: CargoTool =
    CargoTool { name: "mdbook", version: "0.5.4", debug_build: true, default_features: false };

/// Installs the tool if it is not on `PATH`.
pub(crate) fn ensure_installed(tool: &CargoTool) -> Result<(), String> {
    let CargoTool { name, version, debug_build, default_features } = tool;
    if shell::is_on_path(name) {
        return Ok(());
    }
    println!("{name} is not on PATH; installing {version} (once, some minutes):");
    let version = format!("={version}");
    let mut command = shell::cargo_command(["install", name, "--version", &version, "--locked"]);
    if *debug_build {
        command.arg("--debug");
    }
    if !default_features {
        command.arg("--no-default-features");
    }
    shell::run(command).map_err(|error| format!("{name} could not be installed ({error})"))?;
    if shell::is_on_path(name) {
        Ok(())
    } else {
        Err(format!("{name} is installed, but not on PATH: add cargo's bin directory to it"))
    }
}
