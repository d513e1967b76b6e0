//! Cargo subcommands that the tasks stand on. One that is missing is installed, in the version that CI uses.

use crate::shell;

#[derive(Debug)]
pub(crate) struct CargoTool {
    /// Of the package and of its program.
    name: &'static str,
    /// Installed if there is none; another version that is there already is used as it is.
    version: &'static str,
    /// Built without optimisation: what it does takes less time than optimising it.
    debug_build: bool,
    /// With its default features.
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
/// The default features serve the book over HTTP and search it; `build` needs neither.
pub(crate) const MDBOOK: CargoTool =
    CargoTool { name: "mdbook", version: "0.5.4", debug_build: true, default_features: false };

/// Makes sure that the tool is on `PATH`.
pub(crate) fn ensure_installed(tool: &CargoTool) -> Result<(), String> {
    let CargoTool { name, version, debug_build: debug, default_features } = tool;
    if shell::is_on_path(name) {
        return Ok(());
    }
    println!("{name} is not on PATH; installing {version} (once, some minutes):");
    let version = format!("={version}");
    let mut command = shell::cargo_command(["install", name, "--version", &version, "--locked"]);
    if *debug {
        command.arg("--debug");
    }
    if !default_features {
        command.arg("--no-default-features");
    }
    shell::run(command).map_err(|why| format!("{name} could not be installed ({why})"))?;
    if shell::is_on_path(name) {
        Ok(())
    } else {
        Err(format!("{name} is installed, but not on PATH: add cargo's bin directory to it"))
    }
}
