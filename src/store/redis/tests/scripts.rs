//! Scripts of queues, called by hand: a copy that comes late, and a key that is not ours.

use super::server::Server;
use crate::store::redis::scripts::{LuaScript, TASKS_POLL, TASKS_PUSH};

const LINE: &str = "lg:1:x:{0}:z:q";
const NUMBERS: &str = "lg:1:x:{0}:zp:n";
const RUNNING: &str = "lg:1:x:{0}:zl:q";
const RECORDS: &str = "lg:1:x:{0}:zt:q";
const FAULTS: &str = "lg:1:x:{0}:zm:q";
const FACTS: &str = "lg:1:x:{0}:zf:q";
const TURNS: &str = "lg:1:x:{0}:zr:q@w";

/// As long as those of tasks.
const IDS: [&str; 3] =
    ["aaaaaaaaaaaaaaaaaaaaaa", "bbbbbbbbbbbbbbbbbbbbbb", "cccccccccccccccccccccc"];

async fn eval(
    server: &Server,
    script: &LuaScript,
    keys: [&str; 2],
    args: &[&str],
) -> redis::RedisResult<redis::Value> {
    server.try_ask(&[&["EVAL", script.source, "2"], &keys[..], args].concat()).await
}

/// The letters of these pushes of one call, each under its number. Several of them go the long way.
async fn push(server: &Server, tasks: &[(&str, u64)]) -> String {
    let caps = format!("{} 1000 1000000", tasks.len());
    let terms: Vec<_> = tasks.iter().map(|(_, n)| format!("{n} {} 0 -", 1 + n % 4096)).collect();
    let mut args = vec![&*caps];
    for ((id, _), terms) in tasks.iter().zip(&terms) {
        args.extend([*id, terms, " 1 3 \nx"]);
    }
    match eval(server, &TASKS_PUSH, [LINE, NUMBERS], &args).await {
        Ok(redis::Value::BulkString(letters)) => String::from_utf8(letters).unwrap(),
        other => format!("{other:?}"),
    }
}

async fn count(server: &Server, call: &[&str]) -> u64 {
    server.ask(call).await
}

#[tokio::test]
async fn a_push_that_comes_late_hides_no_newer_one() {
    let server = Server::start().await;
    // Alone it goes the short way, beside another one the long way.
    for beside in [&[][..], &[(IDS[2], 9)]] {
        let _: () = server.ask(&["FLUSHALL"]).await;
        let old = [&[(IDS[0], 5)], beside].concat();
        let newer = [&[(IDS[1], 5 + 4096)], beside].concat();
        let all = |letter: &str| letter.to_owned() + &"1".repeat(beside.len());
        assert_eq!(push(&server, &old).await, all("1"));
        assert_eq!(push(&server, &newer).await, all("1"));
        // Both have ended, and then their copies come.
        for id in &IDS[..2] {
            assert_eq!(count(&server, &["ZREM", LINE, id]).await, 1);
            assert_eq!(count(&server, &["HDEL", RECORDS, id]).await, 1);
        }
        assert_eq!(push(&server, &old).await, all("?"));
        assert_eq!(push(&server, &newer).await, all("1"), "it is known");
        let there = beside.len() as u64;
        assert_eq!(count(&server, &["ZCARD", LINE]).await, there, "and not stored again");
    }
}

#[tokio::test]
async fn a_push_that_met_what_is_not_ours_is_not_known_as_stored() {
    let server = Server::start().await;
    for tasks in [&[(IDS[0], 5)][..], &[(IDS[0], 5), (IDS[1], 6)]] {
        for odd in [RECORDS, LINE, FACTS] {
            let _: () = server.ask(&["FLUSHALL"]).await;
            let _: () = server.ask(&["SET", odd, "odd"]).await;
            for _ in 0..2 {
                let told = push(&server, tasks).await;
                assert!(told.starts_with('!') || told.contains("WRONGTYPE"), "{odd} {told}");
            }
            assert_eq!(count(&server, &["DEL", odd]).await, 1);
            assert_eq!(push(&server, tasks).await, "1".repeat(tasks.len()), "{odd}");
            assert_eq!(count(&server, &["ZCARD", LINE]).await, tasks.len() as u64);
        }
    }
}

/// One run has ended, and the next is to begin.
#[tokio::test]
async fn a_turn_that_meets_what_is_not_ours_leaves_each_task_its_place() {
    let server = Server::start().await;
    for odd in [FAULTS, FACTS, RECORDS] {
        let _: () = server.ask(&["FLUSHALL"]).await;
        for (id, number) in [(IDS[0], 1), (IDS[1], 2)] {
            assert_eq!(push(&server, &[(id, number)]).await, "1");
        }
        let turn = |number: u64| {
            let terms = "2 0 0 10000000 610000 8000000 0 0 0 604800000000 10000 1073741824 3";
            format!("ab:cd.{number} {terms}")
        };
        eval(&server, &TASKS_POLL, [LINE, TURNS], &[&turn(1)]).await.unwrap();
        let run = format!("{}cd.1", IDS[0]);
        assert_eq!(server.ask::<Vec<String>>(&["ZRANGE", RUNNING, "0", "-1"]).await, [&*run]);
        let _: () = server.ask(&["DEL", odd]).await;
        let _: () = server.ask(&["SET", odd, "odd"]).await;
        let told = eval(&server, &TASKS_POLL, [LINE, TURNS], &[&turn(2), "d24", &run]).await;
        assert!(told.is_err(), "{odd}: {told:?}");
        assert_eq!(
            server.ask::<Vec<String>>(&["ZRANGE", LINE, "0", "-1"]).await,
            [IDS[1]],
            "{odd}"
        );
        if odd == FACTS {
            assert_eq!(server.ask::<Vec<String>>(&["ZRANGE", RUNNING, "0", "-1"]).await, [&*run]);
        }
    }
}
