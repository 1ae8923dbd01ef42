//! task_init against an agent on a real Unix socket: launching, waiting, failing, and an agent that comes and goes.

mod agent;

use std::collections::BTreeMap;
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use agent::Books;
use slurm_serve_proto::v1::ModelState;
use slurm_serve_recipe::RawOptions;
use spank_serve::settings::Settings;
use spank_serve::task::{Asker, Failure, Job, prepare};
use tonic::Status;

/// A job whose environment and stderr are here.
#[derive(Clone, Default)]
struct TestJob {
    vars: BTreeMap<String, String>,
    said: Arc<Mutex<Vec<String>>>,
}

impl Job for TestJob {
    fn var(&self, name: &str) -> Option<String> {
        self.vars.get(name).cloned()
    }
    fn vars(&self) -> Vec<(String, String)> {
        self.vars.clone().into_iter().collect()
    }
    fn set(&mut self, name: &str, value: &str) -> Result<(), String> {
        self.vars.insert(name.into(), value.into());
        Ok(())
    }
    fn unset(&mut self, name: &str) {
        self.vars.remove(name);
    }
    fn say(&self, line: &str) {
        self.said.lock().unwrap().push(line.into());
    }
}

struct Stage {
    folder: tempfile::TempDir,
    job: TestJob,
    asker: Asker,
    settings: Settings,
}

/// What became of a job: how task_init ended, the environment after it, the lines in its stderr.
struct Outcome {
    result: Result<(), Failure>,
    vars: BTreeMap<String, String>,
    said: Vec<String>,
}

impl Outcome {
    fn failure(&self) -> String {
        self.result
            .as_ref()
            .expect_err("the job got its model")
            .0
            .join("\n")
    }
}

impl Stage {
    fn new(agent_wait: Duration) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let vars = [
            ("HOME", folder.path().to_str().unwrap()),
            ("SLURMD_NODENAME", "n1"),
            ("SLURM_RESTART_COUNT", "3"),
            ("HF_TOKEN", "hf-secret"),
            ("UNRELATED", "1"),
            ("SLURM_SPANK__SLURM_SPANK_OPTION_serve_serve_model", "tiny"),
            ("SLURM_SPANK__SLURM_SPANK_OPTION_serve_serve_wait", "ready"),
        ];
        let job = TestJob {
            vars: vars
                .map(|(name, value)| (name.to_owned(), value.to_owned()))
                .into(),
            ..TestJob::default()
        };
        let recipes = folder.path().join("models.d");
        std::fs::create_dir(&recipes).unwrap();
        std::fs::write(recipes.join("tiny.toml"), "source = \"org/tiny\"\n").unwrap();
        let settings = Settings {
            socket: folder.path().join("agent.sock"),
            recipes,
            agent_wait,
        };
        let asker = Asker {
            job_id: 7,
            step_id: 0xffff_fffb,
            options: RawOptions {
                model: "tiny".into(),
                ..RawOptions::default()
            },
            leads: true,
        };
        Self {
            folder,
            job,
            asker,
            settings,
        }
    }

    fn socket(&self) -> PathBuf {
        self.settings.socket.clone()
    }

    /// task_init, on a thread of its own.
    fn start(&self) -> JoinHandle<Outcome> {
        let (mut job, asker, settings) = (self.job.clone(), self.asker.clone(), self.settings.clone());
        std::thread::spawn(move || {
            let result = prepare(&mut job, &asker, &settings);
            let said = job.said.lock().unwrap().clone();
            Outcome {
                result,
                vars: job.vars,
                said,
            }
        })
    }

    fn until_said(&self, part: &str) {
        let deadline = std::time::Instant::now() + Duration::from_secs(20);
        while !self
            .job
            .said
            .lock()
            .unwrap()
            .iter()
            .any(|line| line.contains(part))
        {
            assert!(std::time::Instant::now() < deadline, "never said: {part}");
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

const LONG: Duration = Duration::from_secs(60);

#[test]
fn the_first_asker_launches_waits_and_gets_the_endpoint() {
    let stage = Stage::new(LONG);
    let books = Books::new(&["HF_*"]);
    let _agent = agent::serve(&stage.socket(), books.clone());
    books.state(ModelState::Requested, "");
    let job = stage.start();
    books.until("launched", |heard| !heard.launched.is_empty());
    books.state(ModelState::Loading, "shards 1/2");
    stage.until_said("shards 1/2");
    books.state(ModelState::Ready, "");
    let outcome = job.join().unwrap();
    assert_eq!(outcome.result, Ok(()));

    books.heard(|heard| {
        let launch = &heard.launched[0];
        assert_eq!((launch.job_id, launch.restart_count), (7, 3));
        assert_eq!(
            launch.env,
            [("HF_TOKEN".to_owned(), "hf-secret".to_owned())].into()
        );
        assert!(launch.user_recipe.is_empty());
        assert!(!heard.opened[0].has_user_recipe);
        assert_eq!(heard.opened[0].step_id, 0xffff_fffb);
    });
    assert_eq!(outcome.vars["OPENAI_BASE_URL"], "http://n1:18100/v1");
    assert_eq!(outcome.vars["OPENAI_API_KEY"], "sk-job");
    assert_eq!(outcome.vars["SERVE_MODEL"], "tiny");
    let inherited = outcome.vars.keys().find(|name| name.contains("SPANK_OPTION"));
    assert_eq!(inherited, None, "steps and nested jobs would ask again");
    assert!(
        outcome
            .said
            .last()
            .unwrap()
            .starts_with("serve: tiny: ready after "),
        "{:?}",
        outcome.said
    );
}

#[test]
fn a_component_of_a_heterogeneous_job_asks_for_the_first_ones_model() {
    let mut stage = Stage::new(LONG);
    stage
        .job
        .vars
        .insert("SLURM_JOB_ID_HET_GROUP_0".into(), "5".into());
    let books = Books::new(&[]);
    let _agent = agent::serve(&stage.socket(), books.clone());
    books.state(ModelState::Ready, "");
    assert_eq!(stage.start().join().unwrap().result, Ok(()));
    books.heard(|heard| assert_eq!(heard.opened[0].job_id, 5));
}

#[test]
fn a_task_that_does_not_lead_waits_silently() {
    let mut stage = Stage::new(LONG);
    stage.asker.leads = false;
    stage.asker.options.env = "serve-only".into();
    let books = Books::new(&[]);
    let _agent = agent::serve(&stage.socket(), books.clone());
    books.state(ModelState::Loading, "shards 1/2");
    let job = stage.start();
    books.until("waited", |heard| heard.awaited > 0);
    books.state(ModelState::Ready, "");
    let outcome = job.join().unwrap();
    assert_eq!(outcome.result, Ok(()));
    assert!(outcome.said.is_empty(), "{:?}", outcome.said);
    assert!(!outcome.vars.contains_key("OPENAI_BASE_URL"));
    assert_eq!(outcome.vars["SERVE_MODEL_URL"], "http://n1:18100/v1");
}

#[test]
fn a_failed_model_fails_the_job_with_its_reason() {
    let stage = Stage::new(LONG);
    let books = Books::new(&[]);
    let _agent = agent::serve(&stage.socket(), books.clone());
    books.state(ModelState::Loading, "");
    let job = stage.start();
    books.until("waited", |heard| heard.awaited > 0);
    books.failed("no weights at /w", "check source", "/h/serve-7.log");
    let told = job.join().unwrap().failure();
    let expected = [
        "serve: tiny: failed: no weights at /w",
        "what to do: check source",
        "/h/serve-7.log on n1",
    ];
    for (line, part) in told.lines().zip(expected) {
        assert!(line.contains(part), "{told}");
    }
    assert_eq!(told.lines().count(), expected.len(), "{told}");
}

#[test]
fn what_the_agent_refuses_is_told_in_its_words() {
    let stage = Stage::new(LONG);
    let books = Books::new(&[]);
    let _agent = agent::serve(&stage.socket(), books.clone());
    books.tell(|told| told.refusal = Some(Status::failed_precondition("job 7 showed no --serve-model")));
    let outcome = stage.start().join().unwrap();
    assert_eq!(outcome.failure(), "serve: tiny: job 7 showed no --serve-model");
}

#[test]
fn the_end_of_the_job_ends_the_wait() {
    let stage = Stage::new(LONG);
    let books = Books::new(&[]);
    let _agent = agent::serve(&stage.socket(), books.clone());
    books.state(ModelState::Loading, "");
    let job = stage.start();
    books.until("waited", |heard| heard.awaited > 0);
    books.tell(|told| told.job_ending = true);
    assert!(job.join().unwrap().failure().contains("the job is being ended"));
}

#[test]
fn without_waiting_the_endpoint_is_enough() {
    let mut stage = Stage::new(LONG);
    stage.asker.options.wait = "no".into();
    let books = Books::new(&[]);
    books.tell(|told| told.open.wait_for_ready = false);
    let _agent = agent::serve(&stage.socket(), books.clone());
    books.state(ModelState::Launching, "");
    let job = stage.start();
    stage.until_said("launching");
    books.state(ModelState::Loading, "");
    let outcome = job.join().unwrap();
    assert_eq!(outcome.result, Ok(()));
    assert_eq!(outcome.vars["OPENAI_BASE_URL"], "http://n1:18100/v1");
    assert!(
        outcome.said.last().unwrap().contains("loading; it will be at"),
        "{:?}",
        outcome.said
    );
}

#[test]
fn an_agent_that_is_not_there_yet_is_waited_for() {
    let stage = Stage::new(LONG);
    let job = stage.start();
    stage.until_said("does not answer");
    let books = Books::new(&[]);
    books.state(ModelState::Ready, "");
    let _agent = agent::serve(&stage.socket(), books);
    let outcome = job.join().unwrap();
    assert_eq!(outcome.result, Ok(()));
    let complaints = outcome
        .said
        .iter()
        .filter(|line| line.contains("does not answer"))
        .count();
    assert_eq!(complaints, 1, "{:?}", outcome.said);
}

#[test]
fn an_agent_that_never_comes_fails_the_job_with_what_to_do() {
    let stage = Stage::new(Duration::from_secs(1));
    let told = stage.start().join().unwrap().failure();
    assert_eq!(told.lines().count(), 1);
    for part in [
        "the agent on n1",
        stage.socket().to_str().unwrap(),
        "submit it again",
    ] {
        assert!(told.contains(part), "{told}");
    }
}

#[test]
fn a_restart_of_the_agent_is_lived_through() {
    let stage = Stage::new(LONG);
    let books = Books::new(&[]);
    let first = agent::serve(&stage.socket(), books.clone());
    books.state(ModelState::Loading, "");
    let job = stage.start();
    books.until("waited", |heard| heard.awaited > 0);
    drop(first);
    stage.until_said("does not answer");
    let _second = agent::serve(&stage.socket(), books.clone());
    stage.until_said("the agent answers");
    books.state(ModelState::Ready, "");
    assert_eq!(job.join().unwrap().result, Ok(()));
    books.heard(|heard| assert_eq!(heard.launched.len(), 1));
}

#[test]
fn an_agent_that_forgot_the_launch_is_asked_again() {
    let stage = Stage::new(LONG);
    let books = Books::new(&[]);
    let first = agent::serve(&stage.socket(), books.clone());
    books.state(ModelState::Loading, "");
    let job = stage.start();
    books.until("waited", |heard| heard.awaited > 0);
    drop(first);
    let forgetful = Books::new(&[]);
    let _second = agent::serve(&stage.socket(), forgetful.clone());
    forgetful.until("launched again", |heard| !heard.launched.is_empty());
    forgetful.state(ModelState::Ready, "");
    assert_eq!(job.join().unwrap().result, Ok(()));
}

#[test]
fn an_agent_that_listens_and_never_answers_is_given_up() {
    let stage = Stage::new(Duration::ZERO);
    let _silent = UnixListener::bind(stage.socket()).unwrap();
    assert!(
        stage
            .start()
            .join()
            .unwrap()
            .failure()
            .contains("has not answered")
    );
}

#[test]
fn the_users_own_recipe_goes_along() {
    let mut stage = Stage::new(LONG);
    let own = stage.folder.path().join(".config/slurm-serve/models.d");
    std::fs::create_dir_all(&own).unwrap();
    std::fs::write(
        own.join("mine.toml"),
        "source = \"/w/mine\"\npass_env = [\"UNRELATED\"]\n",
    )
    .unwrap();
    stage.asker.options.model = "mine".into();
    let books = Books::new(&[]);
    books.state(ModelState::Ready, "");
    let _agent = agent::serve(&stage.socket(), books.clone());
    assert_eq!(stage.start().join().unwrap().result, Ok(()));
    books.heard(|heard| {
        assert!(heard.opened[0].has_user_recipe);
        let launch = &heard.launched[0];
        assert!(launch.user_recipe.contains("/w/mine"), "{}", launch.user_recipe);
        assert_eq!(launch.env, [("UNRELATED".to_owned(), "1".to_owned())].into());
    });
}
