//! Runner of the npm queues. It installs the versions of `benches/node/package-lock.json` once,
//! into a folder of the target directory.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use super::queue_plan::QueuePlan;
use crate::{bench_process::BenchProcess, bench_result::BenchResult};

const LOCK_FILE: &str = "package-lock.json";
const NODE_FILES: [&str; 5] =
    ["package.json", LOCK_FILE, "plan.mjs", "bullmq.mjs", "bee-queue.mjs"];

/// Copy of the lock file of the last installation.
const INSTALLED_LOCK_FILE: &str = "installed.json";

/// Installed scripts and modules.
#[derive(Debug)]
pub(crate) struct NodeRunner {
    folder: PathBuf,
}

impl NodeRunner {
    /// Installs the modules if they are missing or outdated. The error is a message for the report.
    pub(crate) fn prepare() -> Result<Self, String> {
        let version = run_command(Command::new("node").arg("--version"))
            .map_err(|error| format!("Node is not available: {error}"))?;
        let folder = install_folder().ok_or("the program is not in a target directory")?;
        fs::create_dir_all(&folder).map_err(|error| error.to_string())?;
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("node");
        for file in NODE_FILES {
            let copy_result = fs::copy(source.join(file), folder.join(file));
            copy_result.map_err(|error| format!("{file}: {error}"))?;
        }
        let node = Self { folder };
        if !node.is_installed() {
            node.install()?;
        }
        println!("Node {}, with the modules of {LOCK_FILE}", version.trim());
        Ok(node)
    }

    fn is_installed(&self) -> bool {
        let read = |file: &str| fs::read(self.folder.join(file)).ok();
        let lock = read(LOCK_FILE);
        lock.is_some() && lock == read(INSTALLED_LOCK_FILE)
    }

    fn install(&self) -> Result<(), String> {
        let mut install = Command::new("npm");
        install.current_dir(&self.folder);
        install.args(["ci", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error"]);
        run_command(&mut install).map_err(|error| format!("npm ci: {error}"))?;
        let copy_result =
            fs::copy(self.folder.join(LOCK_FILE), self.folder.join(INSTALLED_LOCK_FILE));
        copy_result.map(drop).map_err(|error| error.to_string())
    }

    pub(crate) fn start(&self, script: &str, plan: &QueuePlan) -> BenchResult<BenchProcess> {
        let mut command = Command::new("node");
        command.current_dir(&self.folder).arg(script).arg(serde_json::to_string(plan)?);
        BenchProcess::spawn(command)
    }
}

/// Returns `bench-node` in the target directory, which is two levels above the program.
fn install_folder() -> Option<PathBuf> {
    let program = env::current_exe().ok()?;
    Some(program.parent()?.parent()?.join("bench-node"))
}

fn run_command(command: &mut Command) -> Result<String, String> {
    let output = command.stdin(Stdio::null()).output().map_err(|error| error.to_string())?;
    if output.status.success() {
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    } else {
        // npm prints the error first and then its usage.
        let stderr = String::from_utf8_lossy(&output.stderr);
        Err(stderr.lines().take(4).collect::<Vec<_>>().join(" "))
    }
}
