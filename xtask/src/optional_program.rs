//! Finds or installs the programs of some tests and checks: a browser, and Prometheus.
//!
//! Unlike `redis-server`, they are no condition: on a machine that cannot have one, a run says so
//! and skips what needs it. `.ci/full` sets their `required_variable`.

use std::env;

use crate::{redis_server_installation::TestEnvironment, shell, system_package::SystemPackage};

/// Program without which some tests are skipped.
#[derive(Debug)]
pub(crate) struct OptionalProgram {
    package: SystemPackage,
    /// What to install by hand, for a message.
    manual_hint: &'static str,
    /// What is skipped without it, for a message.
    skipped: &'static str,
    /// Makes a missing program an error.
    required_variable: &'static str,
    /// Set for tests if the program is missing, so that they skip what needs it. Set by hand, it
    /// also saves the download.
    without_variable: &'static str,
}

/// WebDriver server of Chromium. Its packages bring or need the browser of the same version.
pub(crate) const CHROMEDRIVER: OptionalProgram = OptionalProgram {
    package: SystemPackage {
        program: "chromedriver",
        // Without a font, elements that consist of text have no width to click on.
        apt: &["chromium", "chromium-driver", "fonts-liberation"],
        dnf: &["chromium", "chromedriver"],
        apk: &["chromium", "chromium-chromedriver", "font-liberation"],
        pacman: &["chromium"],
        // Its casks are programs that macOS starts only after a dialog.
        brew: &[],
    },
    manual_hint: "Chromium with its driver (Debian: the packages chromium and chromium-driver)",
    skipped: "the tests in a browser",
    required_variable: "LOCKGATE_TESTS_NEED_BROWSER",
    without_variable: "LOCKGATE_TESTS_WITHOUT_BROWSER",
};

/// Prometheus with its tool, which checks rules and metrics.
pub(crate) const PROMTOOL: OptionalProgram = OptionalProgram {
    package: SystemPackage {
        program: "promtool",
        apt: &["prometheus"],
        // Fedora has no package of this name.
        dnf: &[],
        apk: &["prometheus"],
        pacman: &["prometheus"],
        brew: &["prometheus"],
    },
    manual_hint: "Prometheus (Debian: the package prometheus)",
    skipped: "the tests of metrics and alerts with Prometheus",
    required_variable: "LOCKGATE_TESTS_NEED_PROMETHEUS",
    without_variable: "LOCKGATE_TESTS_WITHOUT_PROMETHEUS",
};

/// Environment variables of the tests, and the message about skipped ones.
pub(crate) type OptionalProgramPlan = (TestEnvironment, Option<String>);

impl OptionalProgram {
    /// Installs the program if it is missing. Returns an error if that fails and the program is
    /// required.
    pub(crate) fn plan(&self) -> Result<OptionalProgramPlan, String> {
        self.plan_for(env::var_os(self.required_variable).is_some(), || {
            if env::var_os(self.without_variable).is_some() {
                return Err(format!("is not used, because {} is set", self.without_variable));
            }
            self.ensure_installed()
        })
    }

    fn plan_for(
        &self,
        is_required: bool,
        ensure_installed: impl FnOnce() -> Result<(), String>,
    ) -> Result<OptionalProgramPlan, String> {
        let Err(problem) = ensure_installed() else { return Ok((Vec::new(), None)) };
        let Self { package: SystemPackage { program, .. }, manual_hint, skipped, .. } = self;
        let message = format!(
            "{program} {problem}: install {manual_hint}, so that `{program}` is on PATH, and run this again."
        );
        if is_required {
            return Err(message);
        }
        let environment = vec![(self.without_variable, "1".into())];
        Ok((environment, Some(format!("Skipped: {skipped}. {message}"))))
    }

    fn ensure_installed(&self) -> Result<(), String> {
        if self.is_usable() {
            return Ok(());
        }
        self.package.install()?;
        if self.is_usable() {
            Ok(())
        } else {
            Err("does not start after the installation".to_owned())
        }
    }

    /// Ubuntu has a `chromedriver` that only asks for a snap.
    fn is_usable(&self) -> bool {
        let version = shell::workspace_command(self.package.program, ["--version"]);
        shell::capture_stdout(version).is_some()
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;

    use super::*;

    #[test]
    fn missing_program_skips_its_tests_unless_it_is_required() {
        for (program, package) in [(CHROMEDRIVER, "chromium-driver"), (PROMTOOL, "prometheus")] {
            assert_eq!(program.plan_for(true, || Ok(())).unwrap(), (Vec::new(), None));
            let missing = || Err("cannot be installed from here".to_owned());
            let (environment, message) = program.plan_for(false, missing).unwrap();
            assert_eq!(environment, [(program.without_variable, OsString::from("1"))]);
            let message = message.unwrap();
            assert!(message.starts_with("Skipped: ") && message.contains(package), "{message}");
            assert!(program.plan_for(true, missing).unwrap_err().contains(package));
        }
    }
}
