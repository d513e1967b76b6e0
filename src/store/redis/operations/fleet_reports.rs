//! Messages of operators to all processes, and the reports that answer inquiries.

use super::number_arg;
use crate::{
    error::Error,
    store::{
        inspection::{MAX_REPORTS, REPORT_TTL_MS},
        key_names::COMMON_SHARD,
        redis::{RedisBackend, reply_reader::ReplyReader, script_sources},
    },
};

impl RedisBackend {
    /// Publishes a message to all processes and returns the number of its receivers, as far as the
    /// server knows it.
    pub(super) async fn publish_to_fleet(&self, text: String) -> Result<u64, Error> {
        let keys = [self.keys.shard_key(COMMON_SHARD, "watch")];
        let args = [self.keys.channel_prefix().into(), "e".into(), text.into_bytes()];
        let script = &script_sources::PUBLISH;
        let reply = self.call_script(COMMON_SHARD, script, &keys, &args).await?;
        ReplyReader::new(script.name, reply).read_number()
    }

    pub(super) async fn append_fleet_report(
        &self,
        inquiry: String,
        report: String,
    ) -> Result<(), Error> {
        let keys = [self.keys.fleet_reports(&inquiry)];
        let args = [report.into_bytes(), number_arg(REPORT_TTL_MS), number_arg(MAX_REPORTS)];
        let script = &script_sources::APPEND_FLEET_REPORT;
        self.call_script(COMMON_SHARD, script, &keys, &args).await.map(drop)
    }

    pub(super) async fn read_fleet_reports(
        &self,
        inquiry: String,
        skipped: usize,
    ) -> Result<Vec<String>, Error> {
        let mut pipe = redis::pipe();
        pipe.cmd("LRANGE").arg(self.keys.fleet_reports(&inquiry)).arg(skipped).arg(-1);
        let replies = self.run_read_pipeline(COMMON_SHARD, "read_reports", &pipe).await?;
        let mut reader =
            ReplyReader::new("read_reports", redis::Value::Array(replies)).read_list()?;
        let mut reports = Vec::new();
        while !reader.is_empty() {
            reports.push(reader.read_text()?);
        }
        Ok(reports)
    }
}
