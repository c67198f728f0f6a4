-- Without this Argo CD does not judge an Application, and the waves of an app of apps wait for nothing.
local status = obj.status or {}
local health = status.health
if health == nil or health.status == nil then
  return { status = "Progressing", message = "The application has not been judged yet" }
end
-- Half way through a sync an Application is called healthy as soon as what is there already is.
if health.status == "Healthy" then
  if status.operationState ~= nil and status.operationState.phase == "Running" then
    return { status = "Progressing", message = "The application is being synced" }
  end
  if status.sync == nil or status.sync.status ~= "Synced" then
    return { status = "Progressing", message = "The application is not as in git" }
  end
end
return { status = health.status, message = health.message or "" }
