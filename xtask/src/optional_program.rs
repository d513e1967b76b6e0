//! Finds or installs the browser of the tests of the demos' page.
//!
//! Unlike `redis-server`, it is no condition: on a machine that cannot have one, a run says so and
//! skips these tests. `.ci/full` sets [`REQUIRED_VARIABLE`].

use std::env;

use crate::{redis_server_installation::TestEnvironment, shell, system_package::SystemPackage};

/// WebDriver server of Chromium. Its packages bring or need the browser of the same version.
const CHROMEDRIVER: SystemPackage = SystemPackage {
    program: "chromedriver",
    // Without a font, elements that consist of text have no width to click on.
    apt: &["chromium", "chromium-driver", "fonts-liberation"],
    dnf: &["chromium", "chromedriver"],
    apk: &["chromium", "chromium-chromedriver", "font-liberation"],
    pacman: &["chromium"],
    // Its casks are programs that macOS starts only after a dialog.
    brew: &[],
};

/// Makes a missing browser an error.
const REQUIRED_VARIABLE: &str = "LOCKGATE_TESTS_NEED_BROWSER";

/// Set for tests if there is no browser, so that they skip what needs one. Set by hand, it also
/// saves the download.
const WITHOUT_BROWSER_VARIABLE: &str = "LOCKGATE_TESTS_WITHOUT_BROWSER";

/// Environment variables of the tests, and the message about skipped ones.
pub(crate) type BrowserPlan = (TestEnvironment, Option<String>);

/// Installs a browser if it is missing. Returns an error if that fails and the browser is required.
pub(crate) fn plan() -> Result<BrowserPlan, String> {
    plan_for(env::var_os(REQUIRED_VARIABLE).is_some(), || {
        if env::var_os(WITHOUT_BROWSER_VARIABLE).is_some() {
            return Err(format!("is not used, because {WITHOUT_BROWSER_VARIABLE} is set"));
        }
        ensure_installed()
    })
}

fn plan_for(
    is_required: bool,
    ensure_installed: impl FnOnce() -> Result<(), String>,
) -> Result<BrowserPlan, String> {
    let Err(problem) = ensure_installed() else { return Ok((Vec::new(), None)) };
    let message = format!(
        "chromedriver {problem}: install Chromium with its driver (Debian: the packages chromium and chromium-driver), so that `chromedriver` is on PATH, and run this again."
    );
    if is_required {
        return Err(message);
    }
    let environment = vec![(WITHOUT_BROWSER_VARIABLE, "1".into())];
    Ok((environment, Some(format!("Skipped: the tests in a browser. {message}"))))
}

fn ensure_installed() -> Result<(), String> {
    if is_usable() {
        return Ok(());
    }
    CHROMEDRIVER.install()?;
    if is_usable() { Ok(()) } else { Err("does not start after the installation".to_owned()) }
}

/// Ubuntu has a program of this name that only asks for a snap.
fn is_usable() -> bool {
    shell::capture_stdout(shell::workspace_command("chromedriver", ["--version"])).is_some()
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;

    use super::*;

    #[test]
    fn missing_browser_skips_its_tests_unless_it_is_required() {
        assert_eq!(plan_for(true, || Ok(())).unwrap(), (Vec::new(), None));
        let missing = || Err("cannot be installed from here".to_owned());
        let (environment, message) = plan_for(false, missing).unwrap();
        assert_eq!(environment, [(WITHOUT_BROWSER_VARIABLE, OsString::from("1"))]);
        let message = message.unwrap();
        assert!(
            message.starts_with("Skipped: ") && message.contains("chromium-driver"),
            "{message}"
        );
        assert!(plan_for(true, missing).unwrap_err().contains("chromium-driver"));
    }
}
