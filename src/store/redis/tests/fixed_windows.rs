//! Fixed windows on a server that stands still within a script: its commands read the clock later than the script did.

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
            scripts::{CHARGE_BATCH, LuaScript, SETTLE_CHARGE},
        },
    },
};

/// Commands for which the clock stands within a script would wait for ever, but for the bound.
const STALL_CODE: &str = "
local turns = 0
repeat
  local later = redis.call('TIME')
  turns = turns + 1
until later[1] * 1000000 + later[2] > now_us + 20000 or turns == 1000000
";

fn stalled_script(script: &LuaScript) -> String {
    let now = include_str!("../../lua/server_time.lua");
    let rest = script.source.strip_prefix(now).expect("it asks for the time first");
    format!("{now}{STALL_CODE}{rest}")
}

/// By which end the window of a charge is told: of one that went alone or among others.
async fn window_end_of_charge(server: &ServerProcess, key: &str, args: &[&str]) -> u64 {
    let code = stalled_script(&CHARGE_BATCH);
    let packed: Vec<u8> = server.query(&[&["EVAL", &code, "1", key], args].concat()).await;
    let mut words = MsgpackReader::from_array(&packed).unwrap();
    let told: Vec<_> = std::iter::from_fn(|| words.next_value()).collect();
    match *told {
        [MsgpackValue::Number(now), MsgpackValue::True, MsgpackValue::Number(1)] => {
            now / 1000 + 3_600_000
        }
        [MsgpackValue::Number(now), MsgpackValue::Number(1), _, MsgpackValue::Number(left)] => {
            now / 1000 + left
        }
        _ => panic!("{told:?}"),
    }
}

async fn window_end_of_settlement(server: &ServerProcess, key: &str, args: &[&str]) -> u64 {
    let code = stalled_script(&SETTLE_CHARGE);
    let told: Vec<u64> = server.query(&[&["EVAL", &code, "1", key], args].concat()).await;
    told[0] / 1000 + told[2]
}

/// A refund that names another end lapses.
#[tokio::test]
async fn slow_script_reports_exact_window_end() {
    let server = ServerProcess::start().await;
    let store = server.store_with_long_timeout().await;
    for way in ["f", "m", "charge"] {
        let subject = Key::custom(way);
        let kind = CounterKeyKind::spent_units(Algorithm::Fixed);
        let keys = KeyNames::new("test");
        let key = keys.counter_parts(&subject, subject.shard(), kind, ("p", &subject)).concat();
        let mut ends = Vec::new();
        for _ in 0..3 {
            ends.push(match way {
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
        // Before Redis 7.0 nobody can tell, a script neither.
        let Ok(end) = end else { return };
        assert_eq!(ends, [end; 3], "{way}");
        for (end, remaining) in ends.into_iter().zip(3..) {
            let by = AdjustmentKind::Refund {
                units: 1,
                window: ChargedWindow { boundary: end, debt_id: 0 },
            };
            let states = store
                .backend()
                .settle_charge(settle_command(&charge_item("p", &subject, 5, 1), by));
            assert_eq!(states.await.unwrap()[0].remaining, remaining, "{way}");
        }
    }
}
