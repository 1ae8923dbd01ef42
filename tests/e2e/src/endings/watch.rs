//! What clients of the gateway see, with the time of each thing: their answers, and which launches the catalog holds ready.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow, bail};

use crate::site::{Site, lock};
use crate::stream;

/// How many clients ask, without pause but for [`PAUSE`].
const CLIENTS: usize = 3;
/// Between two requests of a client: a refusal comes at once, and shall not be asked for in a tight loop.
const PAUSE: Duration = Duration::from_millis(5);
/// Between two looks at the catalog: what all measured times may be too long by.
const LOOK: Duration = Duration::from_millis(8);
/// A catalog that does not answer within this is as good as not there.
const PATIENCE: Duration = Duration::from_secs(5);

/// A request and its answer.
#[derive(Debug, Clone)]
pub struct Asked {
    /// When it was begun.
    pub begun: Instant,
    /// When its answer, or what came instead, was there.
    pub ended: Instant,
    /// `200`, `404 model_not_found`, or what broke.
    pub answer: String,
}

/// What the catalog held over a while.
#[derive(Debug, Clone)]
struct Span {
    /// The end of the first look that saw it, and the begin of the last one.
    first: Instant,
    last: Instant,
    /// Generations that are ready; `None` if the catalog could not be reached.
    ready: Option<BTreeSet<String>>,
}

/// Watches one model until [`Site::watch`]'s body is done.
pub struct Watch {
    stop: AtomicBool,
    asked: Mutex<Vec<Asked>>,
    spans: Mutex<Vec<Span>>,
}

/// An answer that says in order that there is no such model, or none any more. Everything else but 200 is a request that was lost.
pub fn is_orderly(answer: &str) -> bool {
    matches!(
        answer,
        "200"
            | "404 model_not_found"
            | "503 model_ending"
            | "503 model_loading"
            | "503 model_not_answering"
            | "424 model_failed"
            | "503 no_agents"
    )
}

impl Site {
    /// Runs `body` while clients on the login node ask for `model` and the catalog is looked at.
    pub fn watch<T>(&self, model: &str, body: impl FnOnce(&Watch) -> Result<T>) -> Result<T> {
        let watch = Watch {
            stop: AtomicBool::new(false),
            asked: Mutex::default(),
            spans: Mutex::default(),
        };
        let (login, watch) = (self.lab.login(), &watch);
        std::thread::scope(|scope| {
            let clients: Vec<_> = (0..CLIENTS)
                .map(|_| scope.spawn(|| login.inside(|| watch.ask(model))))
                .collect();
            let looker = scope.spawn(|| login.inside(|| watch.look()));
            let done = body(watch);
            watch.stop.store(true, Ordering::Relaxed);
            for thread in clients.into_iter().chain([looker]) {
                thread.join().map_err(|_| anyhow!("a client panicked"))??;
            }
            done
        })
    }
}

impl Watch {
    fn ask(&self, model: &str) {
        while !self.stop.load(Ordering::Relaxed) {
            let begun = Instant::now();
            let answer = stream::ask(model).unwrap_or_else(|error| format!("broken: {error}"));
            let ended = Instant::now();
            lock(&self.asked).push(Asked { begun, ended, answer });
            std::thread::sleep(PAUSE);
        }
    }

    fn look(&self) {
        let mut connection = None;
        while !self.stop.load(Ordering::Relaxed) {
            let before = Instant::now();
            let ready = ready(&mut connection);
            if ready.is_err() {
                connection = None;
            }
            self.saw(before, Instant::now(), ready.ok());
            std::thread::sleep(LOOK);
        }
    }

    fn saw(&self, before: Instant, after: Instant, ready: Option<BTreeSet<String>>) {
        let mut spans = lock(&self.spans);
        match spans.last_mut() {
            Some(span) if span.ready == ready => span.last = before,
            _ => spans.push(Span {
                first: after,
                last: before,
                ready,
            }),
        }
    }

    /// How many requests were answered with 200 so far.
    pub fn answered(&self) -> usize {
        lock(&self.asked)
            .iter()
            .filter(|asked| asked.answer == "200")
            .count()
    }

    /// How many requests have ended so far.
    pub fn asked(&self) -> usize {
        lock(&self.asked).len()
    }

    /// Whether the catalog held `generation` ready when it was looked at last.
    pub fn is_listed(&self, generation: &str) -> bool {
        let spans = lock(&self.spans);
        spans.last().is_some_and(|span| holds(span, generation))
    }

    /// When the catalog was first seen without `generation`, at or after `since`. One that can't be reached holds nothing.
    pub fn gone(&self, generation: &str, since: Instant) -> Option<Instant> {
        self.first(since, |span| !holds(span, generation))
    }

    /// The last look, begun before `gone`, that still saw `generation` ready.
    pub fn seen_last(&self, generation: &str, gone: Instant) -> Option<Instant> {
        let spans = lock(&self.spans);
        let before = spans
            .iter()
            .filter(|span| span.first < gone && holds(span, generation));
        before.map(|span| span.last).next_back()
    }

    /// When the catalog was first seen with `generation` ready, at or after `since`.
    pub fn back(&self, generation: &str, since: Instant) -> Option<Instant> {
        self.first(since, |span| holds(span, generation))
    }

    fn first(&self, since: Instant, wanted: impl Fn(&Span) -> bool) -> Option<Instant> {
        let spans = lock(&self.spans);
        let found = spans.iter().find(|span| wanted(span) && span.last >= since)?;
        Some(found.first.max(since))
    }

    /// Requests begun at or after `since` that were lost: broken, or refused in another way than a model that ends is.
    pub fn lost(&self, since: Option<Instant>) -> Vec<Asked> {
        let asked = lock(&self.asked);
        let late = asked
            .iter()
            .filter(|asked| since.is_none_or(|since| asked.begun >= since));
        late.filter(|asked| !is_orderly(&asked.answer)).cloned().collect()
    }

    /// All answers and how often each came, for people.
    pub fn answers(&self) -> String {
        let mut counts = BTreeMap::<String, usize>::new();
        for asked in lock(&self.asked).iter() {
            *counts.entry(asked.answer.clone()).or_default() += 1;
        }
        let counts: Vec<_> = counts
            .iter()
            .map(|(answer, count)| format!("{count} × {answer}"))
            .collect();
        counts.join(", ")
    }
}

fn holds(span: &Span, generation: &str) -> bool {
    span.ready
        .as_ref()
        .is_some_and(|ready| ready.contains(generation))
}

/// The generations that the catalog holds ready.
fn ready(connection: &mut Option<BufReader<TcpStream>>) -> Result<BTreeSet<String>> {
    let reader = match connection {
        Some(reader) => reader,
        None => {
            let stream = TcpStream::connect("127.0.0.1:8700")?;
            stream.set_read_timeout(Some(PATIENCE))?;
            connection.insert(BufReader::new(stream))
        }
    };
    let request = format!(
        "GET {} HTTP/1.1\r\nhost: gateway\r\n\r\n",
        slurm_serve::listing::PATH
    );
    reader.get_mut().write_all(request.as_bytes())?;
    let mut length = 0;
    let mut line = String::new();
    loop {
        line.clear();
        if reader.read_line(&mut line)? == 0 {
            bail!("the gateway closed the connection");
        }
        if line.trim_end().is_empty() {
            break;
        }
        let header = line
            .split_once(':')
            .filter(|(name, _)| name.eq_ignore_ascii_case("content-length"));
        if let Some((_, value)) = header {
            length = value.trim().parse()?;
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body)?;
    let listing: slurm_serve::listing::Listing = serde_json::from_slice(&body)?;
    let ready = listing.models.into_iter().filter(|model| model.state == "ready");
    Ok(ready.map(|model| model.generation).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn watch(spans: &[(u64, u64, Option<&[&str]>)]) -> (Watch, Instant) {
        let zero = Instant::now();
        let at = |ms| zero + Duration::from_millis(ms);
        let spans = spans.iter().map(|(first, last, ready)| Span {
            first: at(*first),
            last: at(*last),
            ready: ready.map(|names| names.iter().map(|name| (*name).to_owned()).collect()),
        });
        let watch = Watch {
            stop: AtomicBool::new(false),
            asked: Mutex::default(),
            spans: Mutex::new(spans.collect()),
        };
        (watch, zero)
    }

    #[test]
    fn gone_and_back_count_from_the_moment_asked_for() {
        let spans = [
            (0, 90, Some(&["a"] as &[&str])),
            (100, 190, None),
            (200, 290, Some(&["a"])),
        ];
        let (watch, zero) = watch(&spans);
        let at = |ms| zero + Duration::from_millis(ms);
        assert_eq!(watch.gone("a", at(50)), Some(at(100)));
        assert_eq!(watch.seen_last("a", at(100)), Some(at(90)));
        assert_eq!(watch.back("a", at(100)), Some(at(200)));
        assert_eq!(watch.gone("a", at(150)), Some(at(150)), "gone already");
        assert_eq!(watch.gone("a", at(195)), None);
        assert_eq!(watch.gone("b", at(0)), Some(at(0)));
        assert!(watch.is_listed("a") && !watch.is_listed("b"));
    }

    #[test]
    fn looks_that_see_the_same_are_one() {
        let (watch, zero) = watch(&[]);
        let at = |ms| zero + Duration::from_millis(ms);
        watch.saw(at(0), at(1), None);
        watch.saw(at(10), at(11), None);
        watch.saw(at(20), at(21), Some(BTreeSet::new()));
        let spans = lock(&watch.spans);
        assert_eq!(spans.len(), 2);
        assert_eq!((spans[0].first, spans[0].last), (at(1), at(10)));
    }

    #[test]
    fn a_request_is_lost_unless_it_is_answered_or_told_in_order() {
        let (watch, zero) = watch(&[]);
        for (ms, answer) in [
            (0, "502 upstream"),
            (10, "200"),
            (20, "503 model_ending"),
            (30, "broken: reset"),
        ] {
            let begun = zero + Duration::from_millis(ms);
            let answer = answer.to_owned();
            lock(&watch.asked).push(Asked {
                begun,
                ended: begun,
                answer,
            });
        }
        assert_eq!(watch.lost(None).len(), 2);
        assert_eq!(watch.lost(Some(zero + Duration::from_millis(5))).len(), 1);
        assert_eq!((watch.answered(), watch.asked()), (1, 4));
    }
}
