//! Scripts of queues, called by hand: a copy that comes late, and a key that is not ours.

use super::server_process::ServerProcess;
use crate::store::redis::scripts::{LuaScript, TASKS_PUSH, TASKS_SETTLE_AND_POLL};

const QUEUE_KEY: &str = "lg:1:x:{0}:z:q";
const PUSH_NUMBERS_KEY: &str = "lg:1:x:{0}:zp:n";
const RUNNING_KEY: &str = "lg:1:x:{0}:zl:q";
const RECORDS_KEY: &str = "lg:1:x:{0}:zt:q";
const FAILURES_KEY: &str = "lg:1:x:{0}:zm:q";
const COUNTERS_KEY: &str = "lg:1:x:{0}:zf:q";
const LAST_REPLY_KEY: &str = "lg:1:x:{0}:zr:q@w";

/// As long as those of tasks.
const TASK_IDS: [&str; 3] =
    ["aaaaaaaaaaaaaaaaaaaaaa", "bbbbbbbbbbbbbbbbbbbbbb", "cccccccccccccccccccccc"];

async fn eval_script(
    server: &ServerProcess,
    script: &LuaScript,
    keys: [&str; 2],
    args: &[&str],
) -> redis::RedisResult<redis::Value> {
    server.try_query(&[&["EVAL", script.source, "2"], &keys[..], args].concat()).await
}

/// The letters of these pushes of one call, each under its number. Several of them go the long way.
async fn push_tasks(server: &ServerProcess, tasks: &[(&str, u64)]) -> String {
    let caps = format!("{} 1000 1000000", tasks.len());
    let terms: Vec<_> = tasks.iter().map(|(_, n)| format!("{n} {} 0 -", 1 + n % 4096)).collect();
    let mut args = vec![&*caps];
    for ((id, _), terms) in tasks.iter().zip(&terms) {
        args.extend([*id, terms, " 1 3 \nx"]);
    }
    match eval_script(server, &TASKS_PUSH, [QUEUE_KEY, PUSH_NUMBERS_KEY], &args).await {
        Ok(redis::Value::BulkString(letters)) => String::from_utf8(letters).unwrap(),
        other => format!("{other:?}"),
    }
}

async fn read_count(server: &ServerProcess, call: &[&str]) -> u64 {
    server.query(call).await
}

#[tokio::test]
async fn late_copy_of_push_does_not_hide_newer_push() {
    let server = ServerProcess::start().await;
    // Alone it goes the short way, beside another one the long way.
    for beside in [&[][..], &[(TASK_IDS[2], 9)]] {
        let _: () = server.query(&["FLUSHALL"]).await;
        let old = [&[(TASK_IDS[0], 5)], beside].concat();
        let newer = [&[(TASK_IDS[1], 5 + 4096)], beside].concat();
        let all = |letter: &str| letter.to_owned() + &"1".repeat(beside.len());
        assert_eq!(push_tasks(&server, &old).await, all("1"));
        assert_eq!(push_tasks(&server, &newer).await, all("1"));
        // Both have ended, and then their copies come.
        for id in &TASK_IDS[..2] {
            assert_eq!(read_count(&server, &["ZREM", QUEUE_KEY, id]).await, 1);
            assert_eq!(read_count(&server, &["HDEL", RECORDS_KEY, id]).await, 1);
        }
        assert_eq!(push_tasks(&server, &old).await, all("?"));
        assert_eq!(push_tasks(&server, &newer).await, all("1"), "it is known");
        let there = beside.len() as u64;
        assert_eq!(read_count(&server, &["ZCARD", QUEUE_KEY]).await, there, "and not stored again");
    }
}

#[tokio::test]
async fn failed_push_is_not_recorded_as_stored() {
    let server = ServerProcess::start().await;
    for tasks in [&[(TASK_IDS[0], 5)][..], &[(TASK_IDS[0], 5), (TASK_IDS[1], 6)]] {
        for odd in [RECORDS_KEY, QUEUE_KEY, COUNTERS_KEY] {
            let _: () = server.query(&["FLUSHALL"]).await;
            let _: () = server.query(&["SET", odd, "odd"]).await;
            for _ in 0..2 {
                let told = push_tasks(&server, tasks).await;
                assert!(told.starts_with('!') || told.contains("WRONGTYPE"), "{odd} {told}");
            }
            assert_eq!(read_count(&server, &["DEL", odd]).await, 1);
            assert_eq!(push_tasks(&server, tasks).await, "1".repeat(tasks.len()), "{odd}");
            assert_eq!(read_count(&server, &["ZCARD", QUEUE_KEY]).await, tasks.len() as u64);
        }
    }
}

/// One run has ended, and the next is to begin.
#[tokio::test]
async fn failed_poll_keeps_waiting_task_in_queue() {
    let server = ServerProcess::start().await;
    for odd in [FAILURES_KEY, COUNTERS_KEY, RECORDS_KEY] {
        let _: () = server.query(&["FLUSHALL"]).await;
        for (id, number) in [(TASK_IDS[0], 1), (TASK_IDS[1], 2)] {
            assert_eq!(push_tasks(&server, &[(id, number)]).await, "1");
        }
        let turn = |number: u64| {
            let terms = "2 0 0 10000000 610000 8000000 0 0 0 604800000000 10000 1073741824 3";
            format!("ab:cd.{number} {terms}")
        };
        eval_script(&server, &TASKS_SETTLE_AND_POLL, [QUEUE_KEY, LAST_REPLY_KEY], &[&turn(1)])
            .await
            .unwrap();
        let run = format!("{}cd.1", TASK_IDS[0]);
        assert_eq!(server.query::<Vec<String>>(&["ZRANGE", RUNNING_KEY, "0", "-1"]).await, [&*run]);
        let _: () = server.query(&["DEL", odd]).await;
        let _: () = server.query(&["SET", odd, "odd"]).await;
        let told = eval_script(
            &server,
            &TASKS_SETTLE_AND_POLL,
            [QUEUE_KEY, LAST_REPLY_KEY],
            &[&turn(2), "d24", &run],
        )
        .await;
        assert!(told.is_err(), "{odd}: {told:?}");
        assert_eq!(
            server.query::<Vec<String>>(&["ZRANGE", QUEUE_KEY, "0", "-1"]).await,
            [TASK_IDS[1]],
            "{odd}"
        );
        if odd == COUNTERS_KEY {
            assert_eq!(
                server.query::<Vec<String>>(&["ZRANGE", RUNNING_KEY, "0", "-1"]).await,
                [&*run]
            );
        }
    }
}
