//! GPUs as the real nvml-wrapper reads them from a scripted driver, through the process that reads it, to samples.

mod driver;
mod site;
