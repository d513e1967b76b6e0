//! Fixed windows on a server that stalls within a script: its commands read the clock later than
//! the script did.

use redis::RedisResult;

use super::{
    charges::{charge_item, settle_command},
    server_process::ServerProcess,
};
use crate::{
    key::Key,
    store::{
        AdjustmentKind, ChargedWindow,
        key_names::{CounterKeyKind, KeyNames},
        rate::Algorithm,
        redis::{
            msgpack_reader::{MsgpackReader, MsgpackValue},
            script_sources::{CHARGE_BATCH, SETTLE_CHARGE, ScriptSource},
        },
    },
};

/// Stalls the script. The bound ends the loop where the clock stands still within a script.
const STALL_CODE: &str = "
local iterations = 0
repeat
  local later = redis.call('TIME')
  iterations = iterations + 1
until later[1] * 1000000 + later[2] > now_us + 20000 or iterations == 1000000
";

fn stalled_script(script: &ScriptSource) -> String {
    let now = include_str!("../../lua/server_time.lua");
    let rest = script.source.strip_prefix(now).expect("it asks for the time first");
    format!("{now}{STALL_CODE}{rest}")
}

/// Returns the end of the window that a charge reports, sent alone or with others.
async fn window_end_of_charge(server: &ServerProcess, key: &str, args: &[&str]) -> u64 {
    let code = stalled_script(&CHARGE_BATCH);
    let reply: Vec<u8> = server.query(&[&["EVAL", &code, "1", key], args].concat()).await;
    let mut reader = MsgpackReader::from_array(&reply).unwrap();
    let values: Vec<_> = std::iter::from_fn(|| reader.next_value()).collect();
    match *values {
        [MsgpackValue::Number(now), MsgpackValue::True, MsgpackValue::Number(1)] => {
            now / 1000 + 3_600_000
        }
        [
            MsgpackValue::Number(now),
            MsgpackValue::Number(1),
            _,
            MsgpackValue::Number(remaining_ms),
        ] => now / 1000 + remaining_ms,
        _ => panic!("{values:?}"),
    }
}

async fn window_end_of_settlement(server: &ServerProcess, key: &str, args: &[&str]) -> u64 {
    let code = stalled_script(&SETTLE_CHARGE);
    let values: Vec<u64> = server.query(&[&["EVAL", &code, "1", key], args].concat()).await;
    values[0] / 1000 + values[2]
}

/// A refund that names another window end has no effect.
#[tokio::test]
async fn slow_script_reports_exact_window_end() {
    let server = ServerProcess::start().await;
    let store = server.store_with_long_timeout().await;
    for call_kind in ["f", "m", "charge"] {
        let subject = Key::custom(call_kind);
        let kind = CounterKeyKind::spent_units(Algorithm::Fixed);
        let keys = KeyNames::new("test");
        let key = keys.counter_parts(&subject, subject.shard(), kind, ("p", &subject)).concat();
        let mut ends = Vec::new();
        for _ in 0..3 {
            ends.push(match call_kind {
                "f" => window_end_of_charge(&server, &key, &["f", "5", "3600000", "1", "1"]).await,
                "m" => {
                    let args = ["m", "1", "1", "f", "5", "3600000", "1", "0", "0"];
                    window_end_of_charge(&server, &key, &args).await
                }
                _ => {
                    let args = ["charge", "0", "0", "f", "5", "3600000", "1"];
                    window_end_of_settlement(&server, &key, &args).await
                }
            });
        }
        let end: RedisResult<u64> = server.try_query(&["PEXPIRETIME", &key]).await;
        // `PEXPIRETIME` exists since Redis 7.0.
        let Ok(end) = end else { return };
        assert_eq!(ends, [end; 3], "{call_kind}");
        for (end, remaining) in ends.into_iter().zip(3..) {
            let refund = AdjustmentKind::Refund {
                units: 1,
                window: ChargedWindow { boundary: end, debt_id: 0 },
            };
            let settled = store
                .backend()
                .settle_charge(settle_command(&charge_item("p", &subject, 5, 1), refund));
            assert_eq!(settled.await.unwrap()[0].remaining, remaining, "{call_kind}");
        }
    }
}
