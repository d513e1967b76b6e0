//! `lockgate-fsck` as operators run it: what it says, and what it ends with.

#[path = "fsck/tls.rs"]
mod tls;

use std::{
    process::{Command, Output},
    time::Duration,
};

use lockgate::Store;
use redis_test::server::RedisServer;

/// Only what never comes takes this long.
const TEST_TIMEOUT: Duration = Duration::from_secs(20);

/// The program's exit code, and all that it has said.
fn run_fsck(words: &[&str]) -> (Option<i32>, String) {
    run_fsck_with_store_variable(None, words)
}

/// The same, with this in `LOCKGATE_STORE`.
fn run_fsck_with_store_variable(store: Option<&str>, words: &[&str]) -> (Option<i32>, String) {
    let mut program = Command::new(env!("CARGO_BIN_EXE_lockgate-fsck"));
    program.env_remove("LOCKGATE_STORE").envs(store.map(|url| ("LOCKGATE_STORE", url)));
    run_program(program, words)
}

fn run_program(mut program: Command, words: &[&str]) -> (Option<i32>, String) {
    let Output { status, stdout, stderr } = program.args(words).output().expect("it is built");
    let text = [stdout, stderr].map(|text| String::from_utf8_lossy(&text).into_owned()).concat();
    (status.code(), text)
}

/// Its exit code where nobody reads what it says, as behind `| head -1`.
fn run_fsck_with_closed_output(words: &[&str]) -> Option<i32> {
    let closed = || {
        let (reader, writer) = std::io::pipe().expect("a pipe");
        drop(reader);
        writer
    };
    let mut program = Command::new(env!("CARGO_BIN_EXE_lockgate-fsck"));
    program.env_remove("LOCKGATE_STORE").args(words).stdout(closed()).stderr(closed());
    program.status().expect("it is built").code()
}

async fn send_command(server: &RedisServer, words: &[&str]) {
    let client = redis::Client::open(server.connection_info()).expect("an address");
    // A loaded machine is no outage: by default an answer has half a second.
    let patient = redis::AsyncConnectionConfig::new()
        .set_connection_timeout(Some(TEST_TIMEOUT))
        .set_response_timeout(Some(TEST_TIMEOUT));
    let connection = client.get_multiplexed_async_connection_with_config(&patient);
    let mut connection = connection.await.expect("it runs");
    let mut command = redis::cmd(words[0]);
    command.arg(&words[1..]);
    command.query_async::<redis::Value>(&mut connection).await.expect("the command is right");
}

#[tokio::test]
async fn exit_code_reports_faults_repairs_and_empty_namespace() {
    let server = RedisServer::new();
    let (host, port) = server.host_and_port().expect("it listens on TCP");
    let url = |namespace: &str| format!("redis://{host}:{port}/?ns={namespace}");
    let store = Store::builder(&url("shop")).call_timeout(TEST_TIMEOUT);
    let store = store.connect().await.expect("the URL is right");
    let up = async {
        while store.ping().await.is_err() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(TEST_TIMEOUT, up).await.expect("redis-server starts");
    let held = store.lock("x").acquire().await.expect("it is free");
    let (code, text) = run_fsck(&[&url("shop")]);
    assert_eq!(code, Some(0), "{text}");
    assert!(text.contains("0 faults"), "{text}");
    assert_eq!(run_fsck_with_closed_output(&[&url("shop")]), Some(0));
    held.release().await;

    // An argument is for all to see who may list the processes; a variable is not.
    let (code, text) = run_fsck_with_store_variable(Some(&url("shop")), &["--repair"]);
    assert_eq!(code, Some(0), "{text}");
    let (code, text) = run_fsck_with_store_variable(Some(&url("shop")), &[&url("shpo")]);
    assert_eq!(code, Some(3), "the argument goes before: {text}");

    // A name that nobody has used is no success, and stays none however often it was looked for.
    for _ in 0..2 {
        let (code, text) = run_fsck(&[&url("shpo")]);
        assert_eq!(code, Some(3), "{text}");
        assert!(text.contains("nobody has used this namespace"), "{text}");
        assert_eq!(run_fsck_with_closed_output(&[&url("shpo")]), Some(3));
    }

    // A shard's numbers never end; one that does is a fault that can be mended.
    send_command(&server, &["SET", "lg:1:shop:{3}:odd", "1"]).await;
    let (code, text) = run_fsck(&[&url("shop")]);
    assert_eq!((code, run_fsck_with_closed_output(&[&url("shop")])), (Some(1), Some(1)), "{text}");
    let (code, text) = run_fsck(&[&url("shop"), "--repair"]);
    assert_eq!(code, Some(1), "a key it does not know is left to a person: {text}");
    send_command(&server, &["DEL", "lg:1:shop:{3}:odd"]).await;
    send_command(&server, &["SET", "lg:1:shop:{3}:replicas", "1"]).await;
    let (code, text) = run_fsck(&[&url("shop")]);
    assert_eq!(code, Some(1), "{text}");
    let (code, text) = run_fsck(&[&url("shop"), "--repair"]);
    assert_eq!(code, Some(0), "{text}");
    assert_eq!(run_fsck(&[&url("shop")]).0, Some(0));
}

#[test]
fn invalid_arguments_or_unreachable_store_exit_with_2() {
    for words in [&[][..], &["--mend", "redis://127.0.0.1/"], &["redis://127.0.0.1/?name=shop"]] {
        assert_eq!(
            (run_fsck(words).0, run_fsck_with_closed_output(words)),
            (Some(2), Some(2)),
            "{words:?}"
        );
    }
    for words in [&["redis://a/", "redis://:secret@b/"][..], &["--repair=redis://:secret@b/"]] {
        let (code, text) = run_fsck(words);
        assert_eq!(code, Some(2), "{text}");
        assert!(!text.contains("secret"), "the error shows a password: {text}");
    }
    // Nobody listens there.
    let (code, text) = run_fsck(&["redis://127.0.0.1:1/?ns=shop"]);
    assert_eq!(code, Some(2), "{text}");
}

#[test]
fn help_option_prints_usage_and_exits_with_0() {
    let program = || Command::new(env!("CARGO_BIN_EXE_lockgate-fsck"));
    for words in [&["-h"][..], &["--help"], &["redis://127.0.0.1/", "--repair", "--help"]] {
        let Output { status, stdout, stderr } =
            program().args(words).output().expect("it is built");
        assert_eq!((status.code(), stderr), (Some(0), Vec::new()), "{words:?}");
        let text = String::from_utf8_lossy(&stdout);
        assert!(text.contains("Usage: lockgate-fsck ") && text.contains("Exit codes:"), "{text}");
    }
    assert_eq!(run_fsck_with_closed_output(&["--help"]), Some(0));
}
