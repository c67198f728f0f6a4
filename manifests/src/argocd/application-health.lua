-- Without this Argo CD does not judge an Application, and the waves of an app of apps wait for nothing.
local health = obj.status ~= nil and obj.status.health or nil
if health ~= nil and health.status ~= nil then
  return { status = health.status, message = health.message or "" }
end
return { status = "Progressing", message = "The application has not been judged yet" }
