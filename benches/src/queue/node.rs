//! npm's queues: installed once, with exactly the versions of `benches/node/package-lock.json`, beside
//! what cargo builds.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use super::plan::Plan;
use crate::{outcome::Outcome, process::Process};

const LOCK: &str = "package-lock.json";
const FILES: [&str; 5] = ["package.json", LOCK, "plan.mjs", "bullmq.mjs", "bee-queue.mjs"];

/// A copy of the lock that was installed.
const INSTALLED: &str = "installed.json";

/// Node, and a folder with everything in it.
#[derive(Debug)]
pub(crate) struct Node {
    folder: PathBuf,
}

impl Node {
    /// Or one sentence why not.
    pub(crate) fn prepare() -> Result<Self, String> {
        let version = output(Command::new("node").arg("--version"))
            .map_err(|error| format!("Node is not there: {error}"))?;
        let folder = folder().ok_or("there is no folder beside this program")?;
        fs::create_dir_all(&folder).map_err(|error| error.to_string())?;
        let ours = Path::new(env!("CARGO_MANIFEST_DIR")).join("node");
        for file in FILES {
            let copied = fs::copy(ours.join(file), folder.join(file));
            copied.map_err(|error| format!("{file}: {error}"))?;
        }
        let node = Self { folder };
        if !node.is_installed() {
            node.install()?;
        }
        println!("Node {}, with what {LOCK} says", version.trim());
        Ok(node)
    }

    fn is_installed(&self) -> bool {
        let read = |file: &str| fs::read(self.folder.join(file)).ok();
        let lock = read(LOCK);
        lock.is_some() && lock == read(INSTALLED)
    }

    fn install(&self) -> Result<(), String> {
        let mut install = Command::new("npm");
        install.current_dir(&self.folder);
        install.args(["ci", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error"]);
        output(&mut install).map_err(|error| format!("npm ci: {error}"))?;
        let copied = fs::copy(self.folder.join(LOCK), self.folder.join(INSTALLED));
        copied.map(drop).map_err(|error| error.to_string())
    }

    pub(crate) fn start(&self, script: &str, plan: &Plan) -> Outcome<Process> {
        let mut command = Command::new("node");
        command.current_dir(&self.folder).arg(script).arg(serde_json::to_string(plan)?);
        Process::spawn(command)
    }
}

/// `target/bench-node`, two above the program.
fn folder() -> Option<PathBuf> {
    let program = env::current_exe().ok()?;
    Some(program.parent()?.parent()?.join("bench-node"))
}

fn output(command: &mut Command) -> Result<String, String> {
    let output = command.stdin(Stdio::null()).output().map_err(|error| error.to_string())?;
    if output.status.success() {
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    } else {
        // npm says a sentence, and then how it is used.
        let said = String::from_utf8_lossy(&output.stderr);
        Err(said.lines().take(4).collect::<Vec<_>>().join(" "))
    }
}
