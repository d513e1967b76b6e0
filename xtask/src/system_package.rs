//! `SystemPackage`: programs that cargo does not provide. A missing one is installed by the package
//! manager of this machine.

use crate::shell;

/// Program, and the packages that provide it. Empty lists stand for package managers that have no
/// such package.
#[derive(Debug)]
pub(crate) struct SystemPackage {
    pub(crate) program: &'static str,
    pub(crate) apt: &'static [&'static str],
    pub(crate) dnf: &'static [&'static str],
    pub(crate) apk: &'static [&'static str],
    pub(crate) pacman: &'static [&'static str],
    pub(crate) brew: &'static [&'static str],
}

impl SystemPackage {
    /// Installs the packages. The error continues a sentence that begins with the program.
    pub(crate) fn install(&self) -> Result<(), String> {
        let root = shell::capture_stdout(shell::workspace_command("id", ["-u"]))
            .is_some_and(|id| id.trim() == "0");
        let commands = self
            .plan_installation(shell::is_on_path, root)
            .ok_or_else(|| "cannot be installed from here".to_owned())?;
        println!("{} is not usable here; installing it:", self.program);
        for command in &commands {
            shell::run(shell::workspace_command(command[0], &command[1..]))
                .map_err(|error| format!("could not be installed ({error})"))?;
        }
        if shell::is_on_path(self.program) {
            Ok(())
        } else {
            Err("is still not on PATH after the installation".to_owned())
        }
    }

    /// Commands that install the packages here, or `None` if no supported package manager can be
    /// used.
    pub(crate) fn plan_installation(
        &self,
        on_path: impl Fn(&str) -> bool,
        root: bool,
    ) -> Option<Vec<CommandLine>> {
        // Homebrew refuses to run as root and needs no sudo. All others need root.
        if on_path("brew") && !root {
            return add_packages(&["brew", "install"], self.brew).map(|command| vec![command]);
        }
        let commands = if on_path("apt-get") {
            const APT: [&str; 5] = [
                "env",
                "DEBIAN_FRONTEND=noninteractive",
                "apt-get",
                "-o",
                "DPkg::Lock::Timeout=120",
            ];
            let install = [&APT[..], &["install", "-y", "--no-install-recommends"]].concat();
            vec![[&APT[..], &["update"]].concat(), add_packages(&install, self.apt)?]
        } else if on_path("dnf") {
            vec![add_packages(&["dnf", "install", "-y"], self.dnf)?]
        } else if on_path("apk") {
            vec![add_packages(&["apk", "add", "--no-cache"], self.apk)?]
        } else if on_path("pacman") {
            vec![add_packages(&["pacman", "-Sy", "--noconfirm", "--needed"], self.pacman)?]
        } else {
            return None;
        };
        if root {
            return Some(commands);
        }
        let sudo = |command: CommandLine| [vec!["sudo"], command].concat();
        on_path("sudo").then(|| commands.into_iter().map(sudo).collect())
    }
}

/// Program and its arguments.
type CommandLine = Vec<&'static str>;

fn add_packages(
    command: &[&'static str],
    packages: &'static [&'static str],
) -> Option<CommandLine> {
    (!packages.is_empty()).then(|| [command, packages].concat())
}

#[cfg(test)]
mod tests {
    use super::*;

    const PACKAGE: SystemPackage = SystemPackage {
        program: "redis-server",
        apt: &["redis-server"],
        dnf: &["redis"],
        apk: &[],
        pacman: &["valkey"],
        brew: &["redis"],
    };

    fn planned_commands(available: &[&str], root: bool) -> Option<String> {
        let commands = PACKAGE.plan_installation(|name| available.contains(&name), root)?;
        Some(commands.iter().map(|command| command.join(" ")).collect::<Vec<_>>().join("; "))
    }

    #[test]
    fn apt_plan_updates_first_and_never_prompts() {
        let plan = planned_commands(&["apt-get", "sudo"], true).unwrap();
        assert!(plan.starts_with("env DEBIAN_FRONTEND=noninteractive apt-get"), "{plan}");
        assert!(plan.find("update").unwrap() < plan.find("install -y").unwrap(), "{plan}");
        assert!(plan.ends_with(" redis-server"), "{plan}");
        assert!(!plan.contains("sudo"));
    }

    #[test]
    fn plan_without_root_needs_sudo() {
        assert_eq!(planned_commands(&["dnf", "sudo"], false).unwrap(), "sudo dnf install -y redis");
        assert_eq!(planned_commands(&["dnf"], false), None);
    }

    #[test]
    fn homebrew_plan_uses_neither_root_nor_sudo() {
        assert_eq!(planned_commands(&["brew"], false).unwrap(), "brew install redis");
        assert_eq!(planned_commands(&["brew"], true), None);
    }

    #[test]
    fn unknown_package_manager_or_package_has_no_plan() {
        assert_eq!(planned_commands(&["sudo"], true), None);
        assert_eq!(planned_commands(&["apk"], true), None);
    }
}
